// Model-free sparse queries: the mean of the cached expansions of a query's terms.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arrays.hpp"
#include "query.hpp"

namespace lightir {

// Cached sparse vectors of equal length, one row per term: `width` term ids and their weights (half or float).
struct Expansions {
    const uint32_t* term_ids = nullptr;
    const void* weights = nullptr;
    Element element = Element::float32;
    size_t n_rows = 0;
    size_t width = 0;
};

// Returns the mean of the rows of each query's tokens; a repeated token counts each time. Sums are in double and follow
// the order of the query, so the result depends neither on the batch nor on threads. A token without a row, or a term id
// not below vocab_size, is InvalidInput.
SparseQueries mean_expansions(const Expansions& rows, Span<uint32_t> token_ids, Span<int64_t> indptr,
                              size_t vocab_size, size_t n_threads);

}  // namespace lightir
