// A stored graph over dense rows (HNSW), in the layout of usearch's version 2: a matrix, a head of 64 bytes, a header, the
// nodes' levels, and the nodes with their neighbors at each level.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "arrays.hpp"

namespace lightir {

// Returns a number at any address.
template <typename T>
T number_at(const uint8_t* at) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return value;
}

// The neighbors of a node at one level.
struct Neighbors {
    const uint8_t* at;
    size_t size;

    uint32_t operator[](size_t i) const { return number_at<uint32_t>(at + i * sizeof(uint32_t)); }
};

// What a graph must be: the kind of its vectors' numbers, their width, an exclusive upper bound of its rows, and the maximum
// number of neighbors above level 0, where it is twice as large.
struct GraphShape {
    Element element = Element::int8;
    size_t width = 0;
    size_t n_rows = 0;
    size_t most_neighbors = 16;
};

// A graph whose bytes are borrowed. Every number that a walk follows is checked when it is made.
class StoredGraph {
public:
    // Throws DamagedArrays if a size, level, row, entry point or neighbor is out of bounds, or if the shape is another one.
    StoredGraph(Span<uint8_t> stored, const GraphShape& shape);

    size_t n_nodes() const { return n_nodes_; }
    const GraphShape& shape() const { return shape_; }
    uint32_t entry() const { return entry_; }
    size_t highest_level() const { return highest_; }
    // The vectors, in the order of the nodes.
    const uint8_t* vectors() const { return vectors_; }
    size_t vector_bytes() const { return vector_bytes_; }
    // The row of the node; it ascends with the nodes.
    uint32_t row(uint32_t node) const { return static_cast<uint32_t>(number_at<uint64_t>(head_of(node))); }
    Neighbors neighbors(uint32_t node, size_t level) const;
    // The bytes of a node that hold its row and its neighbors at level 0.
    const uint8_t* head_of(uint32_t node) const {
        return nodes_ + node * base_bytes_ + static_cast<size_t>(levels_before_[node]) * level_bytes_;
    }
    size_t base_bytes() const { return base_bytes_; }
    // The mean length of the first int8 vectors: usearch multiplies rows of length 1 by 127 and cuts what is behind the point.
    double mean_length() const { return mean_length_; }

private:
    void check_head() const;
    void check_nodes(Span<uint8_t> stored);
    void check_neighbors(const uint8_t* at, size_t most, int16_t level) const;
    int16_t level(size_t node) const { return number_at<int16_t>(levels_ + node * sizeof(int16_t)); }
    void measure();

    GraphShape shape_;
    size_t n_nodes_ = 0, vector_bytes_ = 0, highest_ = 0, base_bytes_ = 0, level_bytes_ = 0;
    uint32_t entry_ = 0;
    double mean_length_ = 0.0;
    const uint8_t *vectors_ = nullptr, *head_ = nullptr, *header_ = nullptr, *levels_ = nullptr, *nodes_ = nullptr;
    std::vector<uint32_t> levels_before_;  // by node: the levels above 0 of all nodes before it
};

}  // namespace lightir
