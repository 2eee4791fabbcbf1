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

namespace lightir {

struct Hit {
    uint32_t doc_ord;
    float score;
};

// The largest float below a floor: what a TopK takes for "at least the floor".
inline float just_below(float floor) {
    return std::nextafter(floor, -std::numeric_limits<float>::infinity());
}

// The k best of a stream of documents that come in ascending order: score down, then doc_ord up.
class TopK {
public:
    // lowest: scores at or below it never enter; NaN lets everything in. slack: those come too that are less than so
    // much below the k-th best. ties: those too that score as much as the k-th, see end_segment.
    TopK(size_t k, float lowest, float slack = 0.0f, bool ties = false)
        : k_(k), slack_(slack), ties_(ties), threshold_(lowest) {}

    // A later document has to beat this to enter; ties lose, for their doc_ord is larger, unless all are wanted.
    float threshold() const { return threshold_; }

    void push(uint32_t doc_ord, float score) { keys_.push_back(key(doc_ord, score)); }

    // Raises the threshold to just below the score of the rank-th best so far, guessing that the k-th best of all will
    // not be lower. The guess was right if finish() returns k hits and the k-th beats guessed().
    void guess(size_t rank) {
        if (rank == 0 || rank > keys_.size()) return;
        const auto last = keys_.begin() + static_cast<std::ptrdiff_t>(rank - 1);
        std::nth_element(keys_.begin(), last, keys_.end(), std::greater<uint64_t>());
        guessed_ = std::nextafter(unpack(*last).score, lowest_possible);
        raise(guessed_ - slack_);
    }

    // The last guess, or minus infinity.
    float guessed() const { return guessed_; }

    // Call between batches of pushes: keeps the buffer short and raises the threshold.
    void shrink() {
        if (k_ == 0) keys_.clear();
        if (keys_.size() < 2 * std::max(k_, n_kept_) + 512) return;
        keep_best();
        n_kept_ = keys_.size();
    }

    // Call behind a segment's last document, with its first one: of each segment no more than the k best are kept.
    void end_segment(uint32_t first_ord) {
        if (keys_.size() <= k_) return;
        const auto here = [first_ord](uint64_t one) { return ~static_cast<uint32_t>(one) >= first_ord; };
        const auto first = std::partition(keys_.begin(), keys_.end(), [&](uint64_t one) { return !here(one); });
        if (static_cast<size_t>(keys_.end() - first) <= k_) return;
        const auto end = first + static_cast<std::ptrdiff_t>(k_);
        std::nth_element(first, end, keys_.end(), std::greater<uint64_t>());
        keys_.erase(end, keys_.end());
    }

    std::vector<Hit> finish() {
        if (keys_.size() > k_) keep_best();
        std::sort(keys_.begin(), keys_.end(), std::greater<uint64_t>());
        std::vector<Hit> hits;
        hits.reserve(keys_.size());
        for (const uint64_t one : keys_) hits.push_back(unpack(one));
        return hits;
    }

private:
    static constexpr float lowest_possible = -std::numeric_limits<float>::infinity();

    void raise(float score) {
        if (!(threshold_ >= score)) threshold_ = score;  // it may be NaN
    }

    void keep_best() {
        const auto end = keys_.begin() + static_cast<std::ptrdiff_t>(k_);
        if (k_ > 0) {
            std::nth_element(keys_.begin(), end - 1, keys_.end(), std::greater<uint64_t>());
            const float least = unpack(keys_[k_ - 1]).score;
            raise(ties_ ? just_below(least) : least - slack_);
        }
        const auto near = [this](uint64_t one) { return unpack(one).score > threshold_; };
        keys_.erase((slack_ > 0.0f || ties_) && k_ > 0 ? std::partition(end, keys_.end(), near) : end, keys_.end());
    }

    // One integer whose descending order is score down, doc_ord up. Floats compare like their bits once negative
    // ones are turned over; adding 0 makes -0 and 0 the tie that they are.
    static uint64_t key(uint32_t doc_ord, float score) {
        score += 0.0f;
        uint32_t bits;
        std::memcpy(&bits, &score, 4);
        bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
        return static_cast<uint64_t>(bits) << 32 | static_cast<uint32_t>(~doc_ord);
    }

    static Hit unpack(uint64_t key) {
        uint32_t bits = static_cast<uint32_t>(key >> 32);
        bits = bits & 0x80000000u ? bits & 0x7fffffffu : ~bits;
        Hit hit{~static_cast<uint32_t>(key), 0.0f};
        std::memcpy(&hit.score, &bits, 4);
        return hit;
    }

    size_t k_, n_kept_ = 0;
    float slack_;
    bool ties_;
    float threshold_;
    float guessed_ = lowest_possible;
    std::vector<uint64_t> keys_;
};

}  // namespace lightir
