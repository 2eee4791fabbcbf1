// A rotation that looks random to rows and queries, in O(width log width) steps.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lightir {

// The next number of splitmix64 (Steele et al., 2014), whose bits look random.
inline uint64_t splitmix(uint64_t& state) {
    uint64_t bits = state += 0x9E3779B97F4A7C15;
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
    return bits ^ bits >> 31;
}

// Three rounds, each of which changes the signs of some columns and then multiplies the first p columns by a Hadamard matrix
// of order p, and the last p too if there are more: p is the largest power of 2 up to the width. The signs are always
// the same, so that no index needs to store them.
class Rotation {
public:
    explicit Rotation(size_t width) : width_(width), signs_(n_rounds * width) {
        while (2 * order_ <= width) order_ *= 2;
        uint64_t state = 0;
        for (double& sign : signs_) sign = splitmix(state) >> 63 != 0 ? -1.0 : 1.0;
    }

    void apply(double* values) const {
        for (size_t round = 0; round < n_rounds; ++round) {
            for (size_t j = 0; j < width_; ++j) values[j] *= signs_[round * width_ + j];
            multiply(values);
            if (order_ < width_) multiply(values + width_ - order_);
        }
    }

private:
    static constexpr size_t n_rounds = 3;

    // The fast Walsh-Hadamard transform of `order_` values, which keeps their length.
    void multiply(double* values) const {
        for (size_t half = 1; half < order_; half *= 2) {
            for (size_t first = 0; first < order_; first += 2 * half) {
                for (size_t j = first; j < first + half; ++j) {
                    const double sum = values[j] + values[j + half];
                    values[j + half] = values[j] - values[j + half];
                    values[j] = sum;
                }
            }
        }
        const double factor = 1.0 / std::sqrt(static_cast<double>(order_));
        for (size_t j = 0; j < order_; ++j) values[j] *= factor;
    }

    size_t width_, order_ = 1;
    std::vector<double> signs_;  // (n_rounds, width)
};

}  // namespace lightir
