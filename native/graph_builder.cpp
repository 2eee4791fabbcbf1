#include "graph_builder.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <utility>

#include "parallel.hpp"

namespace lightir {

using namespace graph_layout;

namespace {

constexpr size_t share_of_batch = 64;  // number of nodes of the graph for each node of a batch
constexpr size_t most_at_once = 8192;  // maximum number of nodes of a batch
constexpr size_t nodes_a_task = 8, groups_a_task = 64;
constexpr size_t block = 16;           // candidates that are compared with kept neighbors at once
constexpr uint16_t layout_version[] = {2, 26, 6};

// splitmix64 (Steele, Lea & Flood, 2014): the i-th of a sequence of numbers that are as good as random.
uint64_t random_number(uint64_t i) {
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

// One node in 16 is at level 1, one in 256 at level 2, and so on.
uint8_t random_level(size_t node) {
    return static_cast<uint8_t>(__builtin_clzll(random_number(node) | 1) / 4);
}

uint32_t hash_of(const uint8_t* bytes, size_t n) {
    uint64_t hash = n;
    size_t i = 0;
    for (; i + sizeof(uint64_t) <= n; i += sizeof(uint64_t)) {
        hash = (hash ^ number_at<uint64_t>(bytes + i)) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 32;
    }
    for (; i < n; ++i) hash = (hash ^ bytes[i]) * 0x9e3779b97f4a7c15ull;
    return static_cast<uint32_t>(hash >> 32);
}

// Calls found(node, next) for each node whose vector is that of a later node, and with the next one.
template <typename Found>
void find_equal(const uint8_t* vectors, size_t n, size_t n_bytes, const Found& found) {
    std::vector<uint64_t> keys(n);
    for (size_t i = 0; i < n; ++i) keys[i] = static_cast<uint64_t>(hash_of(vectors + i * n_bytes, n_bytes)) << 32 | i;
    std::sort(keys.begin(), keys.end());
    std::vector<uint32_t> last;  // the last node with each vector among those with a hash
    for (size_t i = 0; i < n; ++i) {
        if (i == 0 || keys[i] >> 32 != keys[i - 1] >> 32) last.clear();
        const auto node = static_cast<uint32_t>(keys[i]);
        const auto is_equal = [&](uint32_t other) {
            return std::memcmp(vectors + other * n_bytes, vectors + node * n_bytes, n_bytes) == 0;
        };
        const auto same = std::find_if(last.begin(), last.end(), is_equal);
        if (same == last.end()) {
            last.push_back(node);
        } else {
            found(*same, node);
            *same = node;
        }
    }
}

}  // namespace

GrowingGraph::GrowingGraph(uint8_t* bytes, Span<uint32_t> rows, const GraphShape& shape, const std::vector<uint8_t>& levels)
    : GraphView(shape, bytes, {rows.size, shape.width * element_bytes(shape.element)}), bytes_(bytes) {
    const auto highest = std::max_element(levels.begin(), levels.end());
    highest_ = *highest;
    entry_ = static_cast<uint32_t>(highest - levels.begin());
    write(vectors_ - matrix_head, static_cast<uint32_t>(n_nodes_));
    write(vectors_ - word, static_cast<uint32_t>(vector_bytes_));
    std::memset(bytes_ + (head_ - bytes), 0, file_head);
    std::memcpy(bytes_ + (head_ - bytes), version, sizeof(version) - sizeof(uint16_t));
    std::memcpy(bytes_ + (head_ - bytes) + sizeof(version) - sizeof(uint16_t), layout_version, sizeof(layout_version));
    const uint8_t kind[] = {inner_product, shape.element == Element::int8 ? as_int8 : as_float16, keys_of_64_bits, nodes_of_32_bits};
    std::memcpy(bytes_ + (head_ - bytes) + kinds, kind, sizeof(kind));
    write(head_ + counts, static_cast<uint64_t>(n_nodes_));
    write(head_ + graph_layout::width, static_cast<uint64_t>(shape.width));
    const uint64_t header[] = {n_nodes_, shape.most_neighbors, 2 * shape.most_neighbors, highest_, entry_};
    for (size_t i = 0; i < 5; ++i) write(header_ + i * sizeof(uint64_t), header[i]);
    counts_.reserve(n_nodes_);
    uint32_t n_levels = 0;
    for (size_t node = 0; node < n_nodes_; ++node) {
        counts_.add(levels[node]);
        n_levels += levels[node];
        write(levels_ + node * sizeof(int16_t), static_cast<int16_t>(levels[node]));
        const uint8_t* at = head_of(static_cast<uint32_t>(node));
        std::memset(bytes_ + (at - bytes), 0, base_bytes_ + levels[node] * level_bytes_);
        write(at, static_cast<uint64_t>(rows[node]));
        write(at + sizeof(uint64_t), static_cast<int16_t>(levels[node]));
    }
    n_bytes_ = static_cast<size_t>(nodes_ - bytes) + n_nodes_ * base_bytes_ + n_levels * level_bytes_;
}

template <typename T>
void GrowingGraph::write(const uint8_t* at, T value) {
    std::memcpy(bytes_ + (at - bytes_), &value, sizeof(T));
}

void GrowingGraph::link(uint32_t node, size_t at_level, const std::vector<uint64_t>& keys) {
    const uint8_t* at = links_of(node, at_level);
    for (size_t i = 0; i < keys.size(); ++i) write(at + (1 + i) * word, hit_of(keys[i]).doc_ord);
    const size_t before = number_at<uint32_t>(at);
    for (size_t i = keys.size(); i < before; ++i) write(at + (1 + i) * word, uint32_t{0});
    write(at, static_cast<uint32_t>(keys.size()));
}

void GrowingGraph::add_link(uint32_t node, size_t at_level, uint32_t neighbor) {
    const uint8_t* at = links_of(node, at_level);
    const uint32_t before = number_at<uint32_t>(at);
    write(at + (1 + before) * word, neighbor);
    write(at, before + 1);
}

const std::vector<uint64_t>& NeighborChoice::choose(const GraphView& graph, const std::vector<uint64_t>& candidates, size_t most) {
    chosen_.clear();
    if (kept_.size() < most) kept_.resize(most);
    for (size_t first = 0; first < candidates.size() && chosen_.size() < most; first += block) {
        const auto begin = candidates.begin() + static_cast<std::ptrdiff_t>(first);
        left_.assign(begin, begin + static_cast<std::ptrdiff_t>(std::min(block, candidates.size() - first)));
        for (size_t i = 0; i < chosen_.size() && !left_.empty(); ++i) drop_nearer(graph, kept_[i]);
        while (!left_.empty() && chosen_.size() < most) {
            GraphQuery& kept = kept_[chosen_.size()];
            chosen_.push_back(left_.front());
            left_.erase(left_.begin());
            if (chosen_.size() == most) break;
            kept.set(graph, hit_of(chosen_.back()).doc_ord);
            drop_nearer(graph, kept);
        }
    }
    return chosen_;
}

// Drops the candidates that are as near to a kept one as to the node, or nearer.
void NeighborChoice::drop_nearer(const GraphView& graph, const GraphQuery& kept) {
    nodes_.clear();
    for (const uint64_t key : left_) nodes_.push_back(hit_of(key).doc_ord);
    scores_.resize(nodes_.size());
    kept.score(graph, {nodes_.data(), nodes_.size()}, scores_.data());
    size_t n = 0;
    for (size_t i = 0; i < left_.size(); ++i) {
        left_[n] = left_[i];
        n += scores_[i] < hit_of(left_[i]).score;
    }
    left_.resize(n);
}

size_t GraphBuilder::most_bytes(size_t n, const GraphShape& shape) {
    size_t n_levels = 0;
    for (size_t node = 0; node < n; ++node) n_levels += random_level(node);
    const size_t node_bytes = shape.width * element_bytes(shape.element) + sizeof(int16_t) + base_bytes(shape.most_neighbors);
    return matrix_head + file_head + graph_head + n * node_bytes + n_levels * level_bytes(shape.most_neighbors);
}

GraphBuilder::GraphBuilder(uint8_t* bytes, Span<uint32_t> rows, const GraphShape& shape, size_t candidates)
    : GraphBuilder(bytes, rows, shape, candidates,
                   plan(bytes + matrix_head, rows.size, shape.width * element_bytes(shape.element))) {}

GraphBuilder::GraphBuilder(uint8_t* bytes, Span<uint32_t> rows, const GraphShape& shape, size_t candidates, Plan plan)
    : graph_(bytes, rows, shape, plan.levels), candidates_(candidates), order_(std::move(plan.order)),
      equal_(std::move(plan.equal)), leads_(std::move(plan.leads)) {
    std::swap(*std::find(order_.begin(), order_.end(), graph_.entry()), order_.front());
}

GraphBuilder::Plan GraphBuilder::plan(const uint8_t* vectors, size_t n, size_t vector_bytes) {
    Plan made{std::vector<uint8_t>(n), {}, {}, std::vector<bool>(n)};
    std::vector<bool> follows(n);
    find_equal(vectors, n, vector_bytes, [&](uint32_t node, uint32_t next) {
        made.equal.emplace_back(node, next);
        if (!follows[node]) made.leads[node] = true;
        follows[next] = true;
    });
    std::sort(made.equal.begin(), made.equal.end());
    for (size_t node = 0; node < n; ++node) {
        if (follows[node]) continue;
        made.levels[node] = random_level(node);
        made.order.push_back(static_cast<uint32_t>(node));
    }
    for (size_t i = made.order.size() - 1; i > 0; --i) std::swap(made.order[i], made.order[random_number(i) % (i + 1)]);
    return made;
}

// Runs task(i, worker) for all i < n; each thread has a worker.
template <typename Task>
void GraphBuilder::share(size_t n, size_t n_threads, const Task& task) {
    n_threads = std::max<size_t>(1, std::min(n_threads, n));
    if (workers_.size() < n_threads) workers_.resize(n_threads);
    std::atomic<size_t> next{0};
    parallel_for(n_threads, n_threads, [&](size_t w) {
        for (size_t i = next++; i < n; i = next++) task(i, workers_[w]);
    });
}

size_t GraphBuilder::add(size_t n_threads) {
    const size_t first = n_added_, n = std::min({order_.size() - first, most_at_once, std::max<size_t>(1, first / share_of_batch)});
    if (n == 0) {
        for (const auto& [node, next] : equal_) graph_.add_link(node, 0, next);
        equal_.clear();
        return 0;
    }
    share((n + nodes_a_task - 1) / nodes_a_task, n_threads, [&](size_t task, Worker& worker) {
        const size_t end = std::min(n, (task + 1) * nodes_a_task);
        for (size_t i = task * nodes_a_task; i < end; ++i) search(order_[first + i], worker);
    });
    links_.clear();
    for (Worker& worker : workers_) {
        links_.insert(links_.end(), worker.links.begin(), worker.links.end());
        worker.links.clear();
    }
    const auto target_of = [](const Link& link) { return std::make_pair(link.target, link.level); };
    std::sort(links_.begin(), links_.end(), [&](const Link& a, const Link& b) {
        return std::make_pair(target_of(a), a.source) < std::make_pair(target_of(b), b.source);
    });
    groups_.clear();
    for (size_t i = 0; i < links_.size(); ++i) {
        if (i == 0 || target_of(links_[i]) != target_of(links_[i - 1])) groups_.push_back(i);
    }
    const size_t n_groups = groups_.size();
    groups_.push_back(links_.size());
    share((n_groups + groups_a_task - 1) / groups_a_task, n_threads, [&](size_t task, Worker& worker) {
        const size_t end = std::min(n_groups, (task + 1) * groups_a_task);
        for (size_t g = task * groups_a_task; g < end; ++g) {
            link_back({links_.data() + groups_[g], groups_[g + 1] - groups_[g]}, worker);
        }
    });
    n_added_ += n;
    return n;
}

size_t GraphBuilder::most_neighbors(uint32_t node, size_t level) const {
    const size_t most = graph_.shape().most_neighbors;
    return level > 0 ? most : 2 * most - leads_[node];
}

// Links a new node to its neighbors at all of its levels.
void GraphBuilder::search(uint32_t node, Worker& worker) {
    worker.walk.set(graph_, node);
    worker.starts.assign(1, worker.walk.descend(graph_, graph_.level_of(node)));
    for (size_t level = graph_.level_of(node) + 1; level-- > 0;) {
        worker.starts = worker.walk.nearest(graph_, level, candidates_, worker.starts);
        const std::vector<uint64_t>& chosen = worker.choice.choose(graph_, worker.starts, most_neighbors(node, level));
        graph_.link(node, level, chosen);
        for (const uint64_t key : chosen) {
            const Hit hit = hit_of(key);
            worker.links.push_back({hit.doc_ord, static_cast<uint32_t>(level), node, hit.score});
        }
    }
}

// Links a node to those of a batch that link to it at a level.
void GraphBuilder::link_back(Span<Link> links, Worker& worker) {
    const uint32_t node = links[0].target;
    const size_t level = links[0].level, most = most_neighbors(node, level);
    const Neighbors before = graph_.neighbors(node, level);
    if (before.size + links.size <= most) {
        for (const Link& link : links) graph_.add_link(node, level, link.source);
        return;
    }
    worker.nodes.clear();
    for (size_t i = 0; i < before.size; ++i) worker.nodes.push_back(before[i]);
    worker.scores.resize(before.size);
    worker.query.set(graph_, node);
    worker.query.score(graph_, {worker.nodes.data(), before.size}, worker.scores.data());
    worker.candidates.clear();
    for (size_t i = 0; i < before.size; ++i) worker.candidates.push_back(key_of({worker.nodes[i], worker.scores[i]}));
    for (const Link& link : links) worker.candidates.push_back(key_of({link.source, link.score}));
    std::sort(worker.candidates.begin(), worker.candidates.end(), std::greater<uint64_t>());
    graph_.link(node, level, worker.choice.choose(graph_, worker.candidates, most));
}

}  // namespace lightir
