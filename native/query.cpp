#include "query.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>

#include "dispatch.hpp"
#include "errors.hpp"
#include "parallel.hpp"

namespace lightir {
namespace {

constexpr size_t queries_chunk = 256;               // queries per task
constexpr size_t streamed_bytes = size_t{8} << 20;  // output of this size and above bypasses the caches
constexpr size_t cache_line = 64;

// Floats aligned to a cache line.
class Scratch {
public:
    explicit Scratch(size_t n) : kept_(n + cache_line / sizeof(float)) {
        const uintptr_t address = reinterpret_cast<uintptr_t>(kept_.data());
        data = kept_.data() + (cache_line - address % cache_line) % cache_line / sizeof(float);
    }
    float* data;

private:
    std::vector<float> kept_;
};

// Sorts ids in ascending order. Insertion sort takes a third of std::sort's time for few ids.
Span<uint32_t> in_order(const uint32_t* begin, const uint32_t* end, std::vector<uint32_t>& kept) {
    constexpr std::ptrdiff_t few = 24;
    kept.assign(begin, end);
    if (end - begin > few) {
        std::sort(kept.begin(), kept.end());
    } else {
        for (size_t i = 1; i < kept.size(); ++i) {
            const uint32_t id = kept[i];
            size_t at = i;
            for (; at > 0 && kept[at - 1] > id; --at) kept[at] = kept[at - 1];
            kept[at] = id;
        }
    }
    return {kept.data(), kept.size()};
}

// The rows of a chunk of queries that have pairs or a gate.
class WeightedSums {
public:
    WeightedSums(const QueryRows& rows, Span<uint32_t> term_ids, Span<int64_t> indptr, size_t first, size_t last, size_t dim)
        : rows_(rows), term_ids_(term_ids), indptr_(indptr), first_(first), dim_(dim) {
        pair_ends_.reserve(last - first + 1);
        pair_ends_.push_back(0);
        for (size_t q = first; q < last; ++q) {
            if (rows.pairs != nullptr) rows.pairs->index->find(terms(q), pairs_);
            pair_ends_.push_back(pairs_.size());
        }
        if (rows.gate != nullptr) {
            context_.resize(rows.gate->keys.width);
            fetch_gate(first);
        }
        fetch_rows(rows.terms, terms(first), dim);
        if (rows.pairs != nullptr) fetch_rows(rows.pairs->rows, pairs(first), dim);
    }

    // Writes the sum of a query's rows.
    void add_up(size_t q, float* out) {
        if (rows_.gate != nullptr) {
            ids_.swap(next_ids_);
            fetch_gate(q + 1);
            weigh(q);
        }
        const bool gated = rows_.gate != nullptr;
        sum(rows_.terms, terms(q), terms(q + 1), gated ? factors_.data() : nullptr, nullptr, out);
        if (pairs(q).size == 0) return;
        sum(rows_.pairs->rows, pairs(q), pairs(q + 1), gated ? factors_.data() + terms(q).size : nullptr, out, out);
    }

private:
    // The terms of a query; none after the last query.
    Span<uint32_t> terms(size_t q) const {
        if (q + 1 >= indptr_.size) return {};
        const size_t begin = static_cast<size_t>(indptr_[q]);
        return {term_ids_.data + begin, static_cast<size_t>(indptr_[q + 1]) - begin};
    }

    // The rows of a query's pairs; none after the last query of the chunk.
    Span<uint32_t> pairs(size_t q) const {
        const size_t at = q - first_;
        if (at + 1 >= pair_ends_.size()) return {};
        return {pairs_.data() + pair_ends_[at], pair_ends_[at + 1] - pair_ends_[at]};
    }

    void sum(const Matrix& matrix, Span<uint32_t> ids, Span<uint32_t> next, const float* factors, const float* start,
             float* out) const {
        const RowSum what{static_cast<const uint8_t*>(matrix.data), matrix.row_bytes(), matrix.scales, ids.data, ids.size,
                          next.data, next.size, dim_, factors, start};
        level().sum_rows[static_cast<size_t>(matrix.element)](what, out);
    }

    // Sets the next query's rows of the gate and prefetches them.
    void fetch_gate(size_t q) {
        next_ids_.assign(terms(q).begin(), terms(q).end());
        for (const uint32_t row : pairs(q)) next_ids_.push_back(static_cast<uint32_t>(rows_.terms.n_rows + row));
        const Span<uint32_t> ids{next_ids_.data(), next_ids_.size()};
        fetch_rows(rows_.gate->values, ids, context_.size());
        fetch_rows(rows_.gate->keys, ids, context_.size());
    }

    // Sets the factors of a query's rows: weights times scales.
    void weigh(size_t q) {
        const Gate& gate = *rows_.gate;
        const size_t n_terms = terms(q).size, n_rows = ids_.size(), width = context_.size();
        const RowSum what{static_cast<const uint8_t*>(gate.values.data), gate.values.row_bytes(), nullptr, ids_.data(), n_rows,
                          nullptr, 0, width};
        level().sum_rows[static_cast<size_t>(gate.values.element)](what, context_.data());
        level().scale(context_.data(), width, n_rows > 0 ? 1.0f / static_cast<float>(n_rows) : 0.0f, context_.data(), false);
        factors_.resize(n_rows);
        for (size_t i = 0; i < n_rows; ++i) {
            float score;
            level().dot_rows[static_cast<size_t>(gate.keys.element)](gate.keys.row(ids_[i]), 1, 0, context_.data(), width,
                                                                     &score);
            factors_[i] = static_cast<float>(std::exp(static_cast<double>(std::min(std::max(score, -6.0f), 6.0f))));
            const Matrix& matrix = i < n_terms ? rows_.terms : rows_.pairs->rows;
            if (matrix.scales != nullptr) factors_[i] *= matrix.scales[i < n_terms ? ids_[i] : pairs(q)[i - n_terms]];
        }
    }

    const QueryRows& rows_;
    Span<uint32_t> term_ids_;
    Span<int64_t> indptr_;
    size_t first_, dim_;
    std::vector<uint32_t> pairs_, ids_, next_ids_;
    std::vector<size_t> pair_ends_;
    std::vector<float> factors_, context_;
};

}  // namespace

void encode_queries(const QueryRows& rows, Span<uint32_t> term_ids, Span<int64_t> indptr, size_t dim, size_t n_threads,
                    float* out) {
    if (rows.pairs == nullptr && rows.gate == nullptr) {
        mean_rows(rows.terms, term_ids, indptr, dim, true, n_threads, out);
        return;
    }
    const size_t n_queries = indptr.size - 1, n_chunks = (n_queries + queries_chunk - 1) / queries_chunk;
    parallel_for(n_chunks, n_threads, [&](size_t chunk) {
        const size_t first = chunk * queries_chunk, last = std::min(n_queries, first + queries_chunk);
        WeightedSums sums(rows, term_ids, indptr, first, last, dim);
        for (size_t q = first; q < last; ++q) {
            float* row = out + q * dim;
            sums.add_up(q, row);
            const float length = std::sqrt(level().sum_of_squares(row, dim));
            level().scale(row, dim, length > 0.0f ? 1.0f / length : 0.0f, row, false);
        }
    });
}

void mean_rows(const Matrix& table, Span<uint32_t> token_ids, Span<int64_t> indptr, size_t dim, bool normalize,
               size_t n_threads, float* out) {
    const size_t n_queries = indptr.size - 1;
    const bool stream = n_queries * dim * sizeof(float) >= streamed_bytes;
    const auto span_of = [&](size_t q) {
        const size_t begin = static_cast<size_t>(indptr[q]);
        return Span<uint32_t>{token_ids.data + begin, static_cast<size_t>(indptr[q + 1]) - begin};
    };
    const auto one_query = [&](size_t q, float* sum) {
        float* row = out + q * dim;
        if (!stream) sum = row;
        const Span<uint32_t> ids = span_of(q), next = q + 1 < n_queries ? span_of(q + 1) : Span<uint32_t>{};
        const RowSum what{static_cast<const uint8_t*>(table.data), table.row_bytes(), table.scales,
                          ids.data, ids.size, next.data, next.size, dim};
        level().sum_rows[static_cast<size_t>(table.element)](what, sum);
        // The mean and the sum have the same direction.
        const float total = normalize ? std::sqrt(level().sum_of_squares(sum, dim)) : static_cast<float>(ids.size);
        level().scale(sum, dim, total > 0.0f ? 1.0f / total : 0.0f, row, stream);
    };
    const size_t n_chunks = (n_queries + queries_chunk - 1) / queries_chunk;
    parallel_for(n_chunks, n_threads, [&](size_t chunk) {
        Scratch sum(stream ? dim : 0);
        const size_t last = std::min(n_queries, (chunk + 1) * queries_chunk);
        for (size_t q = chunk * queries_chunk; q < last; ++q) one_query(q, sum.data);
        if (stream) std::atomic_thread_fence(std::memory_order_seq_cst);
    });
}

void fetch_rows(const Matrix& table, Span<uint32_t> ids, size_t dim) {
    constexpr size_t near_bytes = size_t{1} << 15;
    const size_t used_bytes = dim * element_bytes(table.element);
    const size_t n_ids = std::min(ids.size, used_bytes == 0 ? 0 : near_bytes / used_bytes);
    for (size_t t = 0; t < n_ids; ++t) {
        if (ids[t] >= table.n_rows) continue;
        const uint8_t* row = table.row(ids[t]);
        for (size_t byte = 0; byte < used_bytes; byte += cache_line) __builtin_prefetch(row + byte);
    }
}

SparseQueries count_terms(Span<uint32_t> token_ids, Span<int64_t> indptr, const TermWeighting& weighting) {
    SparseQueries out;
    out.indptr.reserve(indptr.size);
    out.term_ids.reserve(token_ids.size);
    out.weights.reserve(token_ids.size);
    std::vector<uint32_t> kept;
    for (size_t q = 0; q + 1 < indptr.size; ++q) {
        const Span<uint32_t> sorted = in_order(token_ids.data + indptr[q], token_ids.data + indptr[q + 1], kept);
        if (sorted.size > 0 && sorted[sorted.size - 1] >= weighting.vocab_size) {
            throw InvalidInput("term id " + std::to_string(sorted[sorted.size - 1]) + " is outside the vocabulary of " +
                               std::to_string(weighting.vocab_size));
        }
        for (size_t i = 0; i < sorted.size;) {
            const size_t first = i;
            while (i < sorted.size && sorted[i] == sorted[first]) ++i;
            float weight = weighting.binary ? 1.0f : static_cast<float>(i - first);
            if (weighting.factors != nullptr) weight *= weighting.factors[sorted[first]];
            if (weight == 0.0f) continue;
            out.term_ids.push_back(sorted[first]);
            out.weights.push_back(weight);
        }
        out.indptr.push_back(static_cast<int64_t>(out.term_ids.size()));
    }
    return out;
}

}  // namespace lightir
