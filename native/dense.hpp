#pragma once

#include <cstdint>
#include <vector>

#include "arrays.hpp"
#include "top_k.hpp"

namespace lightir {

// int8 copies of rows of another kind: row i is scales[i] * its copy and a rest whose length is at most errors[i].
struct Copies {
    Matrix rows;  // no data: there are none
    const float* errors = nullptr;
};

// For each of the n_queries rows of dim floats, the k allowed rows with the largest inner product with their first
// dim columns. NaN among the scores is InvalidInput. With copies the result is the same, found faster.
// With floors (n_queries,) the rows that score less than a query's are left out.
std::vector<std::vector<Hit>> dense_top_k(const Matrix& rows, const float* queries, size_t n_queries, size_t dim,
                                          size_t k, size_t n_threads, Bitmap allowed, const Copies& copies = {},
                                          const float* floors = nullptr);

// scores[i] = inner product of the query with row doc_ords[i], to the bit as dense_top_k computes it.
void dense_pair_scores(const Matrix& rows, Span<uint32_t> doc_ords, const float* query, size_t dim, float* scores);

}  // namespace lightir
