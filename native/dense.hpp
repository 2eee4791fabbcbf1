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

// One (dim,) float row a query: the mean of the table rows named by its token ids, weighted by the table's row
// weights if there are any, then scaled to length 1 if asked. No tokens, or weights that are all 0: zeros.
void mean_rows(const Matrix& table, const float* weights, Span<uint32_t> token_ids, Span<int64_t> indptr,
               size_t dim, bool normalize, size_t n_threads, float* out);

}  // namespace lightir
