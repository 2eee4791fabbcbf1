// A graph over dense rows (HNSW), in the layout of usearch's version 2: a matrix, a head of 64 bytes, a header, the nodes'
// levels, and the nodes with their neighbors at each level.
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

// Sizes and numbers of the layout.
namespace graph_layout {

constexpr size_t matrix_head = 8;  // uint32 rows and bytes per row
constexpr size_t file_head = 64;   // what the numbers are
constexpr size_t kinds = 13, counts = 17, width = 33, multi = 41;  // places in the head
constexpr size_t graph_head = 40;  // five uint64: nodes, neighbors, neighbors at level 0, highest level, entry point
constexpr size_t node_head = 10;   // uint64 row, int16 level
constexpr size_t word = sizeof(uint32_t);
constexpr size_t widest = 65536;   // products of wider int8 vectors could exceed 32 bits

// The first bytes of the head: a name, and the number of the version that defines the layout.
constexpr uint8_t version[] = {'u', 's', 'e', 'a', 'r', 'c', 'h', 2, 0};
// usearch's numbers for the inner product, the kinds of vectors' numbers, uint64 keys and uint32 nodes.
constexpr uint8_t inner_product = 'i', as_int8 = 23, as_float16 = 12, keys_of_64_bits = 14, nodes_of_32_bits = 15;

// Bytes of a node at level 0, and at each level above.
constexpr size_t base_bytes(size_t most_neighbors) { return node_head + word * (1 + 2 * most_neighbors); }
constexpr size_t level_bytes(size_t most_neighbors) { return word * (1 + most_neighbors); }

}  // namespace graph_layout

struct GraphSizes {
    size_t n_nodes, vector_bytes;
};

// The parts of a graph's bytes, which are borrowed. It trusts their numbers.
class GraphView {
public:
    size_t n_nodes() const { return n_nodes_; }
    const GraphShape& shape() const { return shape_; }
    uint32_t entry() const { return entry_; }
    size_t highest_level() const { return highest_; }
    // The vectors, in the order of the nodes.
    const uint8_t* vectors() const { return vectors_; }
    size_t vector_bytes() const { return vector_bytes_; }
    // The row of the node; it ascends with the nodes.
    uint32_t row(uint32_t node) const { return static_cast<uint32_t>(number_at<uint64_t>(head_of(node))); }
    Neighbors neighbors(uint32_t node, size_t level) const {
        const uint8_t* at = links_of(node, level);
        return {at + graph_layout::word, number_at<uint32_t>(at)};
    }
    // The bytes of a node that hold its row and its neighbors at level 0.
    const uint8_t* head_of(uint32_t node) const {
        return nodes_ + node * base_bytes_ + static_cast<size_t>(levels_before_[node]) * level_bytes_;
    }
    size_t base_bytes() const { return base_bytes_; }

protected:
    GraphView(const GraphShape& shape, const uint8_t* bytes, const GraphSizes& sizes);

    // The number of a node's neighbors at a level, which the neighbors follow.
    const uint8_t* links_of(uint32_t node, size_t level) const {
        return head_of(node) + (level == 0 ? graph_layout::node_head : base_bytes_ + (level - 1) * level_bytes_);
    }
    size_t level(size_t node) const { return static_cast<size_t>(number_at<int16_t>(levels_ + node * sizeof(int16_t))); }

    GraphShape shape_;
    size_t n_nodes_, vector_bytes_, base_bytes_, level_bytes_, highest_ = 0;
    uint32_t entry_ = 0;
    const uint8_t *vectors_, *head_, *header_, *levels_, *nodes_;
    std::vector<uint32_t> levels_before_;  // by node: the levels above 0 of all nodes before it
};

// A graph whose numbers are all checked when it is made, since a walk follows them.
class StoredGraph : public GraphView {
public:
    // Throws DamagedArrays if a size, level, row, entry point or neighbor is out of bounds, or if the shape is another one.
    StoredGraph(Span<uint8_t> stored, const GraphShape& shape);

    // The mean length of the first int8 vectors: rows of length 1 are multiplied by 127, and what is behind the point is cut.
    double mean_length() const { return mean_length_; }

private:
    void check_head() const;
    void check_nodes(Span<uint8_t> stored);
    void check_neighbors(const uint8_t* at, size_t most, size_t level) const;
    void measure();

    double mean_length_ = 0.0;
};

}  // namespace lightir
