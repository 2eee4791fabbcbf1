// Building of graphs over dense rows: the nodes are added in batches, by any number of threads, and the bytes do not depend on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "graph_walk.hpp"

namespace lightir {

// A graph whose links are being written. The levels of its nodes, and so the places of its parts, are fixed from the beginning.
class GrowingGraph : public GraphView {
public:
    // bytes: at least most_bytes(), with the vectors of all nodes after the first graph_layout::matrix_head bytes. rows: the row of
    // each node. levels: the level of each node.
    GrowingGraph(uint8_t* bytes, Span<uint32_t> rows, const GraphShape& shape, const std::vector<uint8_t>& levels);

    size_t n_bytes() const { return n_bytes_; }
    size_t level_of(uint32_t node) const { return level(node); }
    // Writes the neighbors of a node at a level, instead of what it had.
    void link(uint32_t node, size_t level, const std::vector<uint64_t>& keys);
    // Adds one neighbor to those of a node at a level.
    void add_link(uint32_t node, size_t level, uint32_t neighbor);

private:
    template <typename T>
    void write(const uint8_t* at, T value);

    uint8_t* bytes_;
    size_t n_bytes_ = 0;
};

// Selection of a node's neighbors among candidates (Malkov & Yashunin, 2018, algorithm 4): a candidate is kept if the node is nearer
// to it than every candidate that was kept before.
class NeighborChoice {
public:
    // Returns the keys of at most `most` candidates. candidates: their keys, whose scores are those with the node, best first.
    const std::vector<uint64_t>& choose(const GraphView& graph, const std::vector<uint64_t>& candidates, size_t most);

private:
    void drop_nearer(const GraphView& graph, const GraphQuery& kept);

    std::vector<GraphQuery> kept_;
    std::vector<uint64_t> chosen_, left_;
    std::vector<uint32_t> nodes_;
    std::vector<float> scores_;
};

// Adds nodes to a graph, batch by batch.
//
// The nodes come in an order that is drawn by chance, but always the same: rows that follow each other are often alike, and nodes of a
// batch do not find each other. Each node of a batch searches the graph as it was before the batch, and links to the neighbors that
// NeighborChoice selects. Then each node that was linked to gets the reverse links. If it has no place for them, NeighborChoice
// selects among its old neighbors and the new ones. No thread writes what another one reads.
//
// Of equal vectors only that of the first node is searched for. It links to the second one, and that to the next: a walk that reaches
// the first one meets all.
//
// Besides the bytes, memory holds 8 bytes per node, and while the builder is made 9 more.
class GraphBuilder {
public:
    // Returns a number of bytes that is enough for a graph of n nodes.
    static size_t most_bytes(size_t n, const GraphShape& shape);

    // bytes, rows: see GrowingGraph; both are kept by reference. candidates: number of nodes that a search keeps.
    GraphBuilder(uint8_t* bytes, Span<uint32_t> rows, const GraphShape& shape, size_t candidates);

    // Adds the next batch; returns the number of its nodes, or 0 if all have been added.
    size_t add(size_t n_threads);
    size_t n_bytes() const { return graph_.n_bytes(); }

private:
    struct Link {
        uint32_t target, level, source;
        float score;
    };

    struct Worker {
        GraphWalk walk;
        NeighborChoice choice;
        std::vector<Link> links;
        std::vector<uint64_t> starts, candidates;
        GraphQuery query;
        std::vector<uint32_t> nodes;
        std::vector<float> scores;
    };

    struct Plan {
        std::vector<uint8_t> levels;
        std::vector<uint32_t> order;
        std::vector<std::pair<uint32_t, uint32_t>> equal;
        std::vector<bool> leads;
    };

    GraphBuilder(uint8_t* bytes, Span<uint32_t> rows, const GraphShape& shape, size_t candidates, Plan plan);
    static Plan plan(const uint8_t* vectors, size_t n, size_t vector_bytes);
    template <typename Task>
    void share(size_t n, size_t n_threads, const Task& task);
    void search(uint32_t node, Worker& worker);
    void link_back(Span<Link> links, Worker& worker);
    size_t most_neighbors(uint32_t node, size_t level) const;

    GrowingGraph graph_;
    size_t candidates_, n_added_ = 1;
    std::vector<uint32_t> order_;
    std::vector<std::pair<uint32_t, uint32_t>> equal_;  // nodes with equal vectors: one and the next
    std::vector<bool> leads_;                           // whether a node is the first of those with its vector, and not the only one
    std::vector<Worker> workers_;
    std::vector<Link> links_;
    std::vector<size_t> groups_;
};

}  // namespace lightir
