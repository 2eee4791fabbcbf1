#pragma once

#include <cstdint>
#include <vector>

#include "arrays.hpp"
#include "top_k.hpp"

namespace lightir {

// int8 copies of float rows: row i is scales[i] * its copy plus a residual of length at most errors[i].
struct Copies {
    Matrix rows;  // data is null if there are no copies
    const float* errors = nullptr;
};

// For each of the n_queries rows of dim floats, the k allowed rows with the largest inner product with their first
// dim columns. A NaN score is InvalidInput. Copies make the scan faster and do not change the result.
// floors (n_queries,) are the queries' minimum scores, or null.
std::vector<std::vector<Hit>> dense_top_k(const Matrix& rows, const float* queries, size_t n_queries, size_t dim,
                                          size_t k, size_t n_threads, Bitmap allowed, const Copies& copies = {},
                                          const float* floors = nullptr);

// scores[i] = inner product of the query with row doc_ords[i], bit-identical to that of dense_top_k.
void dense_pair_scores(const Matrix& rows, Span<uint32_t> doc_ords, const float* query, size_t dim, float* scores);

}  // namespace lightir
