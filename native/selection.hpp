// Selection of the best of many hits by counting digits of their keys. Comparisons of unordered numbers would be
// mispredicted half of the time and take several times as long.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

namespace lightir {

struct Hit {
    uint32_t doc_ord;
    float score;
};

// Returns an integer that orders like the score; -0 equals 0. Floats order like their bits once negative ones are inverted.
inline uint32_t ordered_bits(float score) {
    score += 0.0f;
    uint32_t bits;
    std::memcpy(&bits, &score, 4);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Returns a key whose descending order is descending score, then ascending doc_ord.
inline uint64_t key_of(Hit hit) {
    return static_cast<uint64_t>(ordered_bits(hit.score)) << 32 | static_cast<uint32_t>(~hit.doc_ord);
}

inline Hit hit_of(uint64_t key) {
    uint32_t bits = static_cast<uint32_t>(key >> 32);
    bits = bits & 0x80000000u ? bits & 0x7fffffffu : ~bits;
    Hit hit{~static_cast<uint32_t>(key), 0.0f};
    std::memcpy(&hit.score, &bits, 4);
    return hit;
}

constexpr size_t few_keys = 64;  // up to this number keys are compared

// Returns the bits in which keys differ.
inline uint64_t differing_bits(const std::vector<uint64_t>& keys) {
    uint64_t differing = 0;
    for (const uint64_t key : keys) differing |= key ^ keys[0];
    return differing;
}

// Returns the rank-th largest key, counted from 1. Divides keys by their highest differing bits until few keys share those
// of the wanted one.
inline uint64_t nth_largest(const uint64_t* keys, size_t n, size_t rank) {
    constexpr int digit_bits = 10;
    constexpr size_t n_digits = size_t{1} << digit_bits;
    std::vector<uint64_t> left(keys, keys + n);
    while (left.size() > few_keys) {
        const uint64_t differing = differing_bits(left);
        if (differing == 0) return left[0];
        const int highest = 63 - __builtin_clzll(differing), shift = std::max(0, highest + 1 - digit_bits);
        const auto digit = [shift](uint64_t key) { return static_cast<size_t>(key >> shift) & (n_digits - 1); };
        uint32_t counts[n_digits] = {};
        for (const uint64_t key : left) ++counts[digit(key)];
        size_t wanted = n_digits - 1;
        for (; rank > counts[wanted]; --wanted) rank -= counts[wanted];
        size_t n_left = 0;
        for (const uint64_t key : left) {
            left[n_left] = key;
            n_left += digit(key) == wanted;
        }
        left.resize(n_left);
    }
    const auto at = left.begin() + static_cast<std::ptrdiff_t>(rank - 1);
    std::nth_element(left.begin(), at, left.end(), std::greater<uint64_t>());
    return *at;
}

// Sorts keys in descending order by the bytes of the scores, from the lowest that differs. Ties are sorted last, since most
// are in order already.
inline void sort_descending(std::vector<uint64_t>& keys) {
    if (keys.size() <= few_keys) {
        std::sort(keys.begin(), keys.end(), std::greater<uint64_t>());
        return;
    }
    constexpr size_t n_digits = 256;
    const uint64_t differing = differing_bits(keys);
    std::vector<uint64_t> moved(keys.size());
    for (int shift = 32; shift < 64; shift += 8) {
        if ((differing >> shift & (n_digits - 1)) == 0) continue;
        const auto digit = [shift](uint64_t key) { return static_cast<size_t>(~key >> shift) & (n_digits - 1); };
        uint32_t places[n_digits] = {};
        for (const uint64_t key : keys) ++places[digit(key)];
        uint32_t before = 0;
        for (uint32_t& place : places) before += std::exchange(place, before);
        for (const uint64_t key : keys) moved[places[digit(key)]++] = key;
        keys.swap(moved);
    }
    for (auto first = keys.begin(), last = first; first != keys.end(); first = last) {
        while (last != keys.end() && *last >> 32 == *first >> 32) ++last;
        if (!std::is_sorted(first, last, std::greater<uint64_t>())) std::sort(first, last, std::greater<uint64_t>());
    }
}

}  // namespace lightir
