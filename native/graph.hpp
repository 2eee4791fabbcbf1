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

// The levels above 0 of the nodes before a node, in a few bits a node, so that they stay in a cache. Few nodes have two or more.
class LevelCounts {
public:
    void reserve(size_t n_nodes) { blocks_.reserve(n_nodes / block_nodes + 2); }

    // Adds the next node.
    void add(size_t level) {
        const uint32_t place = n_nodes_ % block_nodes;
        if (place == 0) blocks_.push_back(blocks_.back());
        Block& block = blocks_[blocks_.size() - 2];
        block.above |= static_cast<uint32_t>(level > 0) << place;
        if (level > 1) high_.push_back({n_nodes_, static_cast<uint32_t>(level - 1)});
        ++n_nodes_;
        Block& end = blocks_.back();
        end.before += static_cast<uint32_t>(level);
        end.first_high = static_cast<uint32_t>(high_.size());
    }

    size_t before(uint32_t node) const {
        const Block* block = &blocks_[node / block_nodes];
        const uint32_t earlier = (uint32_t{1} << node % block_nodes) - 1;
        size_t n = block->before + count_bits(block->above & earlier);
        for (size_t i = block->first_high; i < block[1].first_high; ++i) n += high_[i].node < node ? high_[i].more : 0;
        return n;
    }

private:
    // The compiler calls a function for this where it cannot rely on an instruction.
    static uint32_t count_bits(uint32_t x) {
        x -= x >> 1 & 0x55555555u;
        x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
        return ((x + (x >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24;
    }

    static constexpr uint32_t block_nodes = 32;
    struct Block {
        uint32_t before = 0;      // the levels of all nodes before the block
        uint32_t above = 0;       // a bit for each node that has a level above 0
        uint32_t first_high = 0;  // among the high nodes
    };
    struct High {
        uint32_t node, more;  // the levels above 1
    };

    std::vector<Block> blocks_ = std::vector<Block>(1);  // and the end
    std::vector<High> high_;                             // ascending
    uint32_t n_nodes_ = 0;
};

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
        return nodes_ + node * base_bytes_ + counts_.before(node) * level_bytes_;
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
    LevelCounts counts_;
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
