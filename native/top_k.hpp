#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "arrays.hpp"
#include "levels.hpp"
#include "selection.hpp"

namespace lightir {

// Returns the largest float below a floor; as the exclusive limit of a TopK it means "at least the floor".
inline float just_below(float floor) {
    return std::nextafter(floor, -std::numeric_limits<float>::infinity());
}

// doc_ords have 32 bits. A larger k means all documents, and sums with it must not overflow.
constexpr size_t most_documents = size_t{1} << 32;

// Collects the k best of a stream of ascending doc_ords, ordered by descending score, then ascending doc_ord.
class TopK {
public:
    // lowest: scores at or below it are rejected; NaN accepts all. slack: also keep scores less than this below the k-th
    // best. ties: also keep scores equal to the k-th; the caller must then call end_segment.
    TopK(size_t k, float lowest, float slack = 0.0f, bool ties = false)
        : k_(std::min(k, most_documents)), slack_(slack), ties_(ties), threshold_(lowest) {}

    // A later document must score above this. A tie is rejected because its doc_ord is larger, unless ties are kept.
    float threshold() const { return threshold_; }

    void push(uint32_t doc_ord, float score) { keys_.push_back(key_of({doc_ord, score})); }

    // Raises the threshold to just below the score of the rank-th best so far, guessing that the k-th best of all
    // is not lower. The guess was right if finish() returns k hits and the k-th scores above guessed().
    void guess(size_t rank) {
        if (rank == 0 || rank > keys_.size()) return;
        guessed_ = just_below(hit_of(nth_largest(keys_.data(), keys_.size(), rank)).score);
        raise(guessed_ - slack_);
    }

    // The last guess, or minus infinity.
    float guessed() const { return guessed_; }

    // Shortens the buffer and raises the threshold; call it between batches of pushes.
    void shrink() { shrink(std::max(k_, n_kept_) + 512); }

    // The same as soon as the buffer has `spare` more documents than it must.
    void shrink(size_t spare) {
        if (k_ == 0) keys_.clear();
        if (keys_.size() < std::max(k_, n_kept_) + spare) return;
        keep_best();
        n_kept_ = keys_.size();
    }

    // Keeps at most the k best of a segment; call it after the segment's last document, with the segment's first one.
    void end_segment(uint32_t first_ord) {
        const auto earlier = [first_ord](uint64_t one) { return hit_of(one).doc_ord < first_ord; };
        const auto first = std::partition_point(keys_.begin(), keys_.end(), earlier);
        const auto n = static_cast<size_t>(keys_.end() - first);
        if (n <= k_) return;
        const uint64_t last = nth_largest(keys_.data() + (first - keys_.begin()), n, k_);
        keys_.erase(std::remove_if(first, keys_.end(), [last](uint64_t one) { return one < last; }), keys_.end());
    }

    // Takes over what another has collected from later documents.
    void append(const TopK& later) {
        keys_.insert(keys_.end(), later.keys_.begin(), later.keys_.end());
        guessed_ = std::max(guessed_, later.guessed_);
    }

    std::vector<Hit> finish() {
        if (keys_.size() > k_) keep_best();
        sort_descending(keys_);
        std::vector<Hit> hits;
        hits.reserve(keys_.size());
        for (const uint64_t one : keys_) hits.push_back(hit_of(one));
        return hits;
    }

private:
    static constexpr float lowest_possible = -std::numeric_limits<float>::infinity();

    void raise(float score) {
        if (!(threshold_ >= score)) threshold_ = score;  // threshold_ may be NaN
    }

    // Keeps documents in order of arrival. Requires k or more documents.
    void keep_best() {
        if (k_ == 0) {
            keys_.clear();
            return;
        }
        const uint64_t last = nth_largest(keys_.data(), keys_.size(), k_);
        const float least = hit_of(last).score;
        raise(ties_ ? just_below(least) : least - slack_);
        const bool more = ties_ || slack_ > 0.0f;
        const uint32_t threshold = ordered_bits(threshold_);
        size_t n = 0;
        for (const uint64_t one : keys_) {
            keys_[n] = one;
            n += static_cast<size_t>((one >= last) | (more & (one >> 32 > threshold)));
        }
        keys_.resize(n);
    }

    size_t k_, n_kept_ = 0;
    float slack_;
    bool ties_;
    float threshold_;
    float guessed_ = lowest_possible;
    std::vector<uint64_t> keys_;  // in order of arrival
};

}  // namespace lightir
