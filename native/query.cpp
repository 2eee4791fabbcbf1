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

}  // namespace

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
