// Sparse queries without a model: the mean of the cached expansions of a query's terms.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arrays.hpp"
#include "query.hpp"

namespace lightir {

// One row a term: `width` term ids and their weights (half or float); rows of cached sparse vectors of equal length.
struct Expansions {
    const uint32_t* term_ids = nullptr;
    const void* weights = nullptr;
    Element element = Element::float32;
    size_t n_rows = 0;
    size_t width = 0;
};

// The mean of the rows of each query's tokens, repeats counted. Sums are in double and in the order of the query, so a
// query's row depends neither on its batch nor on threads. A token without a row, or a term id in a row that is not
// below vocab_size, is InvalidInput.
SparseQueries mean_expansions(const Expansions& rows, Span<uint32_t> token_ids, Span<int64_t> indptr,
                              size_t vocab_size, size_t n_threads);

}  // namespace lightir
