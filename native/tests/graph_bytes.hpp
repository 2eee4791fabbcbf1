// Bytes of graphs for the unit tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lightir {

// The bytes of a graph over int8 rows in the layout of usearch, whose nodes link to the next two.
struct GraphBytes {
    static constexpr uint32_t above = 2, base = 4;
    std::vector<uint8_t> bytes;

    template <typename T>
    void append(T value) {
        const auto* at = reinterpret_cast<const uint8_t*>(&value);
        bytes.insert(bytes.end(), at, at + sizeof(T));
    }

    void append_neighbors(const std::vector<uint32_t>& neighbors, size_t n_slots) {
        append(static_cast<uint32_t>(neighbors.size()));
        for (size_t i = 0; i < n_slots; ++i) append(i < neighbors.size() ? neighbors[i] : 0u);
    }

    GraphBytes(const std::vector<int16_t>& levels, uint32_t width) {
        const auto n = static_cast<uint32_t>(levels.size());
        append(n), append(width);
        for (uint32_t i = 0; i < n * width; ++i) append(static_cast<uint8_t>(37 * i));
        for (const char letter : std::string("usearch")) append(letter);
        for (const uint16_t version : {2, 26, 6}) append(version);
        for (const uint8_t kind : {0x69, 0x17, 0x0e, 0x0f}) append(kind);
        append(uint64_t{n}), append(uint64_t{0}), append(uint64_t{width});
        bytes.resize(bytes.size() + 23, 0);
        const auto highest = std::max_element(levels.begin(), levels.end());
        append(uint64_t{n}), append(uint64_t{above}), append(uint64_t{base});
        append(static_cast<uint64_t>(*highest)), append(static_cast<uint64_t>(highest - levels.begin()));
        for (const int16_t level : levels) append(level);
        for (uint32_t i = 0; i < n; ++i) {
            append(uint64_t{i}), append(levels[i]);
            append_neighbors({(i + 1) % n, (i + 2) % n}, base);
            for (int16_t level = 1; level <= levels[i]; ++level) {
                append_neighbors({static_cast<uint32_t>(highest - levels.begin())}, above);
            }
        }
    }
};

}  // namespace lightir
