#pragma once

#include <cstdint>
#include <vector>

#include "arrays.hpp"
#include "top_k.hpp"

namespace lightir {

// For each of the n_queries rows of dim floats, the k allowed rows with the largest inner product with their first
// dim columns. NaN among the scores is InvalidInput.
std::vector<std::vector<Hit>> dense_top_k(const Matrix& rows, const float* queries, size_t n_queries, size_t dim,
                                          size_t k, size_t n_threads, Bitmap allowed);

// scores[i] = inner product of the query with row doc_ords[i], to the bit as dense_top_k computes it.
void dense_pair_scores(const Matrix& rows, Span<uint32_t> doc_ords, const float* query, size_t dim, float* scores);

}  // namespace lightir
