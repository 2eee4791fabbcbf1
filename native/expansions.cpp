#include "expansions.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "errors.hpp"
#include "half.hpp"
#include "parallel.hpp"

namespace lightir {
namespace {

constexpr size_t queries_chunk = 64;  // queries per task
constexpr size_t word_bits = 64;

// Sums over a vocabulary of which few terms are touched, read in the order of the terms. Two levels of bits mark the
// touched terms, so reading costs their number plus one word per 4,096 terms. All sums are 0 between two queries, so a
// thread reuses the object.
class Sums {
public:
    void make_room(size_t n_terms) {
        if (sums_.size() >= n_terms) return;
        sums_.resize(n_terms);
        touched_.resize((n_terms + word_bits - 1) / word_bits);
        touched_words_.resize((touched_.size() + word_bits - 1) / word_bits);
    }

    void add(uint32_t term, float weight) {
        sums_[term] += static_cast<double>(weight);
        const size_t word = term / word_bits;
        touched_[word] |= uint64_t{1} << term % word_bits;
        touched_words_[word / word_bits] |= uint64_t{1} << word % word_bits;
    }

    // Calls take(term, sum) for each touched term in ascending order and resets all sums to 0.
    template <typename Take>
    void drain(const Take& take) {
        for (size_t outer = 0; outer < touched_words_.size(); ++outer) {
            for (uint64_t words = touched_words_[outer]; words != 0; words &= words - 1) {
                const size_t word = outer * word_bits + static_cast<size_t>(__builtin_ctzll(words));
                for (uint64_t terms = touched_[word]; terms != 0; terms &= terms - 1) {
                    const size_t term = word * word_bits + static_cast<size_t>(__builtin_ctzll(terms));
                    take(static_cast<uint32_t>(term), sums_[term]);
                    sums_[term] = 0.0;
                }
                touched_[word] = 0;
            }
            touched_words_[outer] = 0;
        }
    }

private:
    std::vector<double> sums_;
    std::vector<uint64_t> touched_, touched_words_;
};

// Checks the ids of tokens and of their rows, and returns the number of terms up to the largest one.
size_t checked_terms(const Expansions& rows, Span<uint32_t> tokens, size_t vocab_size) {
    size_t n_terms = 0;
    for (const uint32_t token : tokens) {
        if (token >= rows.n_rows) {
            throw InvalidInput("term id " + std::to_string(token) + " has no expansion; there are " +
                               std::to_string(rows.n_rows));
        }
        const uint32_t* ids = rows.term_ids + token * rows.width;
        uint32_t largest = 0;
        for (size_t i = 0; i < rows.width; ++i) largest = std::max(largest, ids[i]);
        if (rows.width > 0 && largest >= vocab_size) {
            throw InvalidInput("term id " + std::to_string(largest) + " of an expansion is outside the vocabulary of " +
                               std::to_string(vocab_size));
        }
        if (rows.width > 0) n_terms = std::max(n_terms, size_t{largest} + 1);
    }
    return n_terms;
}

void add_rows(const Expansions& rows, Span<uint32_t> tokens, Sums& sums, float* weights) {
    for (const uint32_t token : tokens) {
        const size_t begin = token * rows.width;
        const float* row = weights;
        if (rows.element == Element::float16) {
            const uint16_t* halves = static_cast<const uint16_t*>(rows.weights) + begin;
            for (size_t i = 0; i < rows.width; ++i) weights[i] = half_to_float(halves[i]);
        } else {
            row = static_cast<const float*>(rows.weights) + begin;
        }
        const uint32_t* ids = rows.term_ids + begin;
        for (size_t i = 0; i < rows.width; ++i) sums.add(ids[i], row[i]);
    }
}

void append(SparseQueries& out, Sums& sums, size_t n_tokens) {
    sums.drain([&](uint32_t term, double sum) {
        const float mean = static_cast<float>(sum / static_cast<double>(n_tokens));
        if (mean == 0.0f) return;
        out.term_ids.push_back(term);
        out.weights.push_back(mean);
    });
    out.indptr.push_back(static_cast<int64_t>(out.term_ids.size()));
}

SparseQueries joined(std::vector<SparseQueries> parts) {
    if (parts.size() == 1) return std::move(parts[0]);
    SparseQueries all;
    for (const SparseQueries& part : parts) {
        const int64_t before = static_cast<int64_t>(all.term_ids.size());
        for (size_t i = 1; i < part.indptr.size(); ++i) all.indptr.push_back(before + part.indptr[i]);
        all.term_ids.insert(all.term_ids.end(), part.term_ids.begin(), part.term_ids.end());
        all.weights.insert(all.weights.end(), part.weights.begin(), part.weights.end());
    }
    return all;
}

}  // namespace

SparseQueries mean_expansions(const Expansions& rows, Span<uint32_t> token_ids, Span<int64_t> indptr,
                              size_t vocab_size, size_t n_threads) {
    const size_t n_queries = indptr.size - 1;
    std::vector<SparseQueries> parts((n_queries + queries_chunk - 1) / queries_chunk);
    parallel_for(parts.size(), n_threads, [&](size_t chunk) {
        static thread_local Sums sums;
        std::vector<float> weights(rows.width);
        const size_t first = chunk * queries_chunk, last = std::min(n_queries, first + queries_chunk);
        SparseQueries& out = parts[chunk];
        out.indptr.reserve(last - first + 1);
        const size_t most = static_cast<size_t>(indptr[last] - indptr[first]) * rows.width;
        out.term_ids.reserve(most);
        out.weights.reserve(most);
        for (size_t q = first; q < last; ++q) {
            const size_t begin = static_cast<size_t>(indptr[q]), n = static_cast<size_t>(indptr[q + 1]) - begin;
            const Span<uint32_t> tokens{token_ids.data + begin, n};
            // Before adding anything. This also brings the rows into the cache. The vocabulary may be any number.
            sums.make_room(checked_terms(rows, tokens, vocab_size));
            add_rows(rows, tokens, sums, weights.data());
            append(out, sums, n);
        }
    });
    return joined(std::move(parts));
}

}  // namespace lightir
