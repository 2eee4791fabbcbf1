// Query vectors from term ids: the mean of their table rows (dense) and their counts (sparse).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arrays.hpp"
#include "pair_index.hpp"

namespace lightir {

// Writes one (dim,) float row per query: the mean of the table rows of its token ids, optionally normalized to length 1.
// A query without tokens gets zeros.
void mean_rows(const Matrix& table, Span<uint32_t> token_ids, Span<int64_t> indptr, size_t dim, bool normalize,
               size_t n_threads, float* out);

// Rows of pairs of adjacent terms, which queries have in addition to the rows of their terms.
struct PairRows {
    const PairIndex* index = nullptr;
    Matrix rows;  // (index->size(), width of the terms' table)
};

// Weights of a query's rows: row i has the weight exp(min(max(keys[i] . c, -6), 6)), where c is the mean of values[i] over
// the query's rows. Both matrices are float16 or float32 and as wide as each other; the rows of terms come first, then
// those of pairs.
struct Gate {
    Matrix keys, values;
};

struct QueryRows {
    Matrix terms;
    const PairRows* pairs = nullptr;  // or null
    const Gate* gate = nullptr;       // or null
};

// Writes one (dim,) float row per query: the sum of the rows of its terms and then of its pairs, each in text order and
// multiplied by its weight and scale, normalized to length 1. A query without terms gets zeros. Term ids must be below
// terms.n_rows.
void encode_queries(const QueryRows& rows, Span<uint32_t> term_ids, Span<int64_t> indptr, size_t dim, size_t n_threads,
                    float* out);

// Prefetches the first dim columns of the rows, up to the size of a near cache; ids outside the table are skipped.
void fetch_rows(const Matrix& table, Span<uint32_t> ids, size_t dim);

// The conversion of a term's count to its weight.
struct TermWeighting {
    size_t vocab_size = 0;           // an id not below this is InvalidInput
    bool binary = false;             // weight 1 instead of the count
    const float* factors = nullptr;  // (vocab_size,) factors of the weights, or null
};

// Sparse rows; term ids are strictly ascending within a row, and no weight is 0.
struct SparseQueries {
    std::vector<int64_t> indptr{0};
    std::vector<uint32_t> term_ids;
    std::vector<float> weights;
};

SparseQueries count_terms(Span<uint32_t> token_ids, Span<int64_t> indptr, const TermWeighting& weighting);

}  // namespace lightir
