// The nodes of a graph near a query, by a best-first walk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph.hpp"
#include "selection.hpp"

namespace lightir {

// The nodes that a walk has met: a table with open addressing, at most half full.
class MetNodes {
public:
    void clear();
    // Adds the neighbors of a node and appends those that are new.
    void add(const Neighbors& neighbors, std::vector<uint32_t>& fresh) {
        const size_t n_before = fresh.size();
        fresh.resize(n_before + neighbors.size);
        while (2 * (n_ + neighbors.size) > table_.size()) grow();
        uint32_t* const table = table_.data();
        const size_t last = table_.size() - 1;
        size_t n = n_before;
        for (size_t i = 0; i < neighbors.size; ++i) {
            const uint32_t node = neighbors[i];
            size_t place = place_of(node);
            while (table[place] != none && table[place] != node) place = (place + 1) & last;
            fresh[n] = node;
            n += table[place] == none;
            table[place] = node;
        }
        fresh.resize(n);
        n_ += n - n_before;
    }

private:
    static constexpr uint32_t none = 0xffffffffu;  // no node: a graph has fewer
    static constexpr uint32_t spread = 2654435761u;  // Knuth's multiplicative hashing

    size_t place_of(uint32_t node) const { return (node * spread) >> shift_; }
    void grow();

    std::vector<uint32_t> table_;
    size_t n_ = 0;
    unsigned shift_ = 0;
};

// A vector that is compared with those of graphs.
class GraphQuery {
public:
    // Takes (dim,) finite numbers, which it keeps by reference. They may be fewer than the columns of the vectors.
    void set(const float* query, size_t dim);
    // Takes the vector of a node.
    void set(const GraphView& graph, uint32_t node);

    // Writes the scores of nodes. int8 vectors are scored by exact products with the query as int8, which is made of it as those of
    // rows are: divided by its length, times 127, without what is behind the point. float16 vectors are scored as dense rows are.
    void score(const GraphView& graph, Span<uint32_t> nodes, float* scores) const;
    // The query is approximately this number times its int8 values.
    double unit() const { return unit_; }

private:
    const float* query_ = nullptr;
    size_t dim_ = 0;
    double unit_ = 0.0;
    int32_t sum_ = 0;
    std::vector<int8_t> bytes_;
    std::vector<float> floats_;
};

// Walks graphs for one query at a time, and keeps its buffers between them.
class GraphWalk {
public:
    GraphWalk() = default;
    // query: see GraphQuery.
    GraphWalk(const float* query, size_t dim) { query_.set(query, dim); }
    // Makes the vector of a node the query.
    void set(const GraphView& graph, uint32_t node) { query_.set(graph, node); }

    // Returns at most `width` rows near the query, best first: by approximate score down, then by row up. The walk of each level
    // starts from the nodes that the walk of the level above keeps: one node alone is often in another cluster than the query.
    std::vector<Hit> nearest(const StoredGraph& graph, size_t width);

    // Steps from the entry point to the best neighbor, while that is better, at each level above the given one. Returns the key
    // of the last node.
    uint64_t descend(const GraphView& graph, size_t level);

    // Returns the keys of at most `width` nodes near the query, best first, from those of some nodes.
    //
    // The walk keeps the `width` best of the nodes that it has met. It visits the best of them that it has not visited, a few at
    // once, and meets their neighbors, until it has visited all. It chooses the next few before it scores the neighbors, so that
    // their memory arrives meanwhile.
    const std::vector<uint64_t>& nearest(const GraphView& graph, size_t level, size_t width, const std::vector<uint64_t>& starts);

private:
    void score(const GraphView& graph);
    void meet(uint64_t key, size_t width);
    // Takes the best nodes that are not visited, and prefetches their neighbors.
    void choose_next(const GraphView& graph);

    GraphQuery query_;
    MetNodes met_;
    std::vector<uint64_t> best_;     // the keys of the best nodes, a heap with the worst first
    std::vector<uint64_t> waiting_;  // the keys of nodes that are not visited, a heap with the best first
    std::vector<uint32_t> visited_, next_;
    std::vector<uint32_t> fresh_;
    std::vector<float> scores_;
};

}  // namespace lightir
