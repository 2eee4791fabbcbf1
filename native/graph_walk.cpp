#include "graph_walk.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "dispatch.hpp"
#include "half.hpp"

namespace lightir {
namespace {

constexpr size_t fewest_places = 4096, most_kept_places = 16384;
constexpr uintptr_t line = 64;  // bytes that a cache fetches at once
constexpr double byte_limit = 127.0;
constexpr size_t width_at_1 = 32, width_above = 64;  // numbers of nodes that a search keeps at level 1, and at each level above
constexpr size_t visited_at_once = 3;

// Prefetches the lines that hold some bytes.
inline void fetch(const uint8_t* first, size_t n_bytes) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(first), end = begin + n_bytes;
    for (uintptr_t at = begin / line * line; at < end; at += line) {
        __builtin_prefetch(reinterpret_cast<const void*>(at), 0, 2);
    }
}

inline void fetch_vector(const GraphView& graph, uint32_t node) {
    fetch(graph.vectors() + node * graph.vector_bytes(), graph.vector_bytes());
}

}  // namespace

void MetNodes::clear() {
    if (table_.size() < fewest_places || table_.size() > most_kept_places) {
        table_.assign(fewest_places, none);
        table_.shrink_to_fit();
    } else if (n_ > 0) {
        std::fill(table_.begin(), table_.end(), none);
    }
    shift_ = 32;
    for (size_t size = table_.size(); size > 1; size /= 2) --shift_;
    n_ = 0;
}

void MetNodes::grow() {
    std::vector<uint32_t> nodes(2 * table_.size(), none);
    nodes.swap(table_);
    --shift_;
    for (const uint32_t node : nodes) {
        if (node == none) continue;
        size_t place = place_of(node);
        while (table_[place] != none) place = (place + 1) & (table_.size() - 1);
        table_[place] = node;
    }
}

void GraphQuery::set(const float* query, size_t dim) {
    query_ = query;
    dim_ = dim;
    bytes_.assign((dim + 63) / 64 * 64, 0);
    sum_ = 0;
    double squares = 0.0;
    for (size_t j = 0; j < dim; ++j) squares += static_cast<double>(query[j]) * static_cast<double>(query[j]);
    const double length = std::sqrt(squares);
    int64_t byte_squares = 0;
    for (size_t j = 0; length > 0.0 && j < dim; ++j) {
        bytes_[j] = static_cast<int8_t>(static_cast<double>(query[j]) * byte_limit / length);
        sum_ += bytes_[j];
        byte_squares += bytes_[j] * bytes_[j];
    }
    unit_ = length / std::max(1.0, std::sqrt(static_cast<double>(byte_squares)));
}

void GraphQuery::set(const GraphView& graph, uint32_t node) {
    dim_ = graph.shape().width;
    const uint8_t* vector = graph.vectors() + node * graph.vector_bytes();
    if (graph.shape().element == Element::int8) {
        bytes_.resize((dim_ + 63) / 64 * 64);
        std::memcpy(bytes_.data(), vector, dim_);
        sum_ = 0;
        for (const int8_t value : bytes_) sum_ += value;
        return;
    }
    floats_.resize(dim_);
    for (size_t j = 0; j < dim_; ++j) floats_[j] = half_to_float(number_at<uint16_t>(vector + j * sizeof(uint16_t)));
    query_ = floats_.data();
}

void GraphQuery::score(const GraphView& graph, Span<uint32_t> nodes, float* scores) const {
    const size_t dim = std::min(dim_, graph.shape().width), n_bytes = graph.vector_bytes();
    if (graph.shape().element == Element::int8) {
        level().byte_products(graph.vectors(), n_bytes, nodes.data, nodes.size, {bytes_.data(), dim, sum_}, scores);
        return;
    }
    const auto dot_row = level().dot_rows[static_cast<size_t>(Element::float16)];
    for (size_t i = 0; i < nodes.size; ++i) {
        dot_row(graph.vectors() + nodes[i] * n_bytes, 1, n_bytes, query_, dim, scores + i);
    }
}

std::vector<Hit> GraphWalk::nearest(const StoredGraph& graph, size_t width) {
    std::vector<uint64_t> starts{descend(graph, graph.highest_level())};
    for (size_t level = graph.highest_level(); level > 0; --level) {
        starts = nearest(graph, level, level > 1 ? width_above : width_at_1, starts);
    }
    const std::vector<uint64_t>& keys = nearest(graph, 0, width, starts);
    const bool of_bytes = graph.shape().element == Element::int8;
    const double factor = of_bytes ? query_.unit() / graph.mean_length() : 1.0;
    std::vector<Hit> found;
    found.reserve(keys.size());
    for (const uint64_t key : keys) {
        const Hit hit = hit_of(key);
        found.push_back({graph.row(hit.doc_ord), static_cast<float>(static_cast<double>(hit.score) * factor)});
    }
    return found;
}

uint64_t GraphWalk::descend(const GraphView& graph, size_t to_level) {
    fresh_.assign(1, graph.entry());
    score(graph);
    uint64_t at = key_of({graph.entry(), scores_[0]});
    for (size_t level = graph.highest_level(); level > to_level; --level) {
        for (bool moved = true; moved;) {
            const Neighbors neighbors = graph.neighbors(hit_of(at).doc_ord, level);
            fresh_.clear();
            for (size_t i = 0; i < neighbors.size; ++i) fresh_.push_back(neighbors[i]);
            for (const uint32_t node : fresh_) fetch_vector(graph, node);
            score(graph);
            uint64_t best = at;
            for (size_t i = 0; i < fresh_.size(); ++i) best = std::max(best, key_of({fresh_[i], scores_[i]}));
            moved = best > at;
            at = best;
        }
    }
    return at;
}

const std::vector<uint64_t>& GraphWalk::nearest(const GraphView& graph, size_t at_level, size_t width,
                                                const std::vector<uint64_t>& starts) {
    met_.clear();
    best_.clear();
    waiting_.clear();
    for (const uint64_t key : starts) {
        const uint32_t node = hit_of(key).doc_ord;
        fresh_.clear();
        met_.add({reinterpret_cast<const uint8_t*>(&node), 1}, fresh_);
        meet(key, width);
    }
    choose_next(graph);
    while (!next_.empty()) {
        visited_.swap(next_);
        fresh_.clear();
        for (const uint32_t node : visited_) {
            size_t first = fresh_.size();
            met_.add(graph.neighbors(node, at_level), fresh_);
            for (; first < fresh_.size(); ++first) fetch_vector(graph, fresh_[first]);
        }
        choose_next(graph);
        score(graph);
        for (size_t i = 0; i < fresh_.size(); ++i) meet(key_of({fresh_[i], scores_[i]}), width);
        if (next_.empty()) choose_next(graph);
    }
    std::sort(best_.begin(), best_.end(), std::greater<uint64_t>());
    return best_;
}

void GraphWalk::choose_next(const GraphView& graph) {
    next_.clear();
    while (next_.size() < visited_at_once && !waiting_.empty() && waiting_.front() >= best_.front()) {
        const uint32_t node = hit_of(waiting_.front()).doc_ord;
        std::pop_heap(waiting_.begin(), waiting_.end());
        waiting_.pop_back();
        fetch(graph.head_of(node), graph.base_bytes());
        next_.push_back(node);
    }
}

// Scores the nodes of fresh_.
void GraphWalk::score(const GraphView& graph) {
    scores_.resize(fresh_.size());
    query_.score(graph, {fresh_.data(), fresh_.size()}, scores_.data());
}

// Keeps a node if it is one of the best.
void GraphWalk::meet(uint64_t key, size_t width) {
    if (best_.size() >= width) {
        if (key < best_.front()) return;
        std::pop_heap(best_.begin(), best_.end(), std::greater<uint64_t>());
        best_.back() = key;
    } else {
        best_.push_back(key);
    }
    std::push_heap(best_.begin(), best_.end(), std::greater<uint64_t>());
    waiting_.push_back(key);
    std::push_heap(waiting_.begin(), waiting_.end());
}

}  // namespace lightir
