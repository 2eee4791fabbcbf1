// From a query's term ids to its vectors: the mean of their table rows (dense) and their counts (sparse).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arrays.hpp"

namespace lightir {

// Writes one (dim,) float row per query: the mean of the table rows named by its token ids, then scaled to length 1 if
// asked. A query without tokens gets zeros.
void mean_rows(const Matrix& table, Span<uint32_t> token_ids, Span<int64_t> indptr, size_t dim, bool normalize,
               size_t n_threads, float* out);

// Asks for the first dim columns of the rows, as far as they fit a near cache; ids beyond the table are passed over.
void fetch_rows(const Matrix& table, Span<uint32_t> ids, size_t dim);

// How a term's count becomes its weight.
struct TermWeighting {
    size_t vocab_size = 0;           // ids from here on are InvalidInput
    bool binary = false;             // 1 in place of the count
    const float* factors = nullptr;  // (vocab_size,) that the weights are multiplied by, or null
};

// Sparse rows: within a row term ids ascend and differ, and no weight is 0.
struct SparseQueries {
    std::vector<int64_t> indptr{0};
    std::vector<uint32_t> term_ids;
    std::vector<float> weights;
};

SparseQueries count_terms(Span<uint32_t> token_ids, Span<int64_t> indptr, const TermWeighting& weighting);

}  // namespace lightir
