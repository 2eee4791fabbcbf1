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
    // Adds a node; returns whether it is new.
    bool add(uint32_t node) {
        size_t place = place_of(node);
        for (; table_[place] != none; place = (place + 1) & (table_.size() - 1)) {
            if (table_[place] == node) return false;
        }
        table_[place] = node;
        if (2 * ++n_ > table_.size()) grow();
        return true;
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

// Walks graphs for one query, and keeps its buffers between them.
class GraphWalk {
public:
    // query: (dim,) finite numbers, kept by reference. It may be narrower than the vectors.
    GraphWalk(const float* query, size_t dim);

    // Returns at most `width` rows near the query, best first: by approximate score down, then by row up.
    //
    // From the entry point the walk steps to the best neighbor, while that is better, level by level. At level 0 it keeps the
    // `width` best of the nodes that it has met. It visits the best of them that it has not visited, and meets that node's
    // neighbors, until it has visited all. int8 vectors are scored by exact products with the query as int8, which is made of it as
    // usearch makes the vectors of rows: divided by its length, times 127, without what is behind the point. float16 vectors are
    // scored as dense rows are.
    std::vector<Hit> nearest(const StoredGraph& graph, size_t width);

private:
    uint32_t descend(const StoredGraph& graph);
    void score(const StoredGraph& graph, const std::vector<uint32_t>& nodes);
    void meet(uint32_t node, float score, size_t width);
    void visit(const StoredGraph& graph, uint32_t node, size_t width);

    const float* query_;
    size_t dim_;
    double unit_ = 0.0;  // the query is approximately unit_ * bytes_
    int32_t sum_ = 0;
    std::vector<int8_t> bytes_;
    MetNodes met_;
    std::vector<uint64_t> best_;     // the keys of the best nodes, a heap with the worst first
    std::vector<uint64_t> waiting_;  // the keys of nodes that are not visited, a heap with the best first
    std::vector<uint32_t> fresh_;
    std::vector<float> scores_;
};

}  // namespace lightir
