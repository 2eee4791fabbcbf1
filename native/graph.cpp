#include "graph.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "errors.hpp"

namespace lightir {

using namespace graph_layout;

namespace {

constexpr size_t most_levels = 32767;
constexpr size_t measured = 64;  // vectors

[[noreturn]] void damaged(const std::string& what) { throw DamagedArrays("the graph is damaged: " + what); }

// Returns a graph's sizes, by which its parts are found.
GraphSizes sizes_of(Span<uint8_t> stored) {
    if (stored.size < matrix_head + file_head + graph_head) damaged("it is too short");
    const size_t n_nodes = number_at<uint32_t>(stored.data), n_bytes = number_at<uint32_t>(stored.data + word);
    const size_t left = stored.size - matrix_head - file_head - graph_head;
    if (n_bytes == 0 || n_nodes > left / n_bytes) damaged("its vectors do not fit");
    if ((left - n_nodes * n_bytes) / sizeof(int16_t) < n_nodes) damaged("its levels do not fit");
    return {n_nodes, n_bytes};
}

}  // namespace

GraphView::GraphView(const GraphShape& shape, const uint8_t* bytes, const GraphSizes& sizes)
    : shape_(shape), n_nodes_(sizes.n_nodes), vector_bytes_(sizes.vector_bytes),
      base_bytes_(graph_layout::base_bytes(shape.most_neighbors)),
      level_bytes_(graph_layout::level_bytes(shape.most_neighbors)), vectors_(bytes + matrix_head),
      head_(vectors_ + n_nodes_ * vector_bytes_), header_(head_ + file_head), levels_(header_ + graph_head),
      nodes_(levels_ + n_nodes_ * sizeof(int16_t)) {}

StoredGraph::StoredGraph(Span<uint8_t> stored, const GraphShape& shape)
    : GraphView(shape, stored.data, sizes_of(stored)) {
    check_head();
    check_nodes(stored);
    if (shape_.element == Element::int8) measure();
}

void StoredGraph::check_head() const {
    const auto count = [this](size_t i) { return number_at<uint64_t>(header_ + i * sizeof(uint64_t)); };
    if (std::memcmp(head_, version, sizeof(version)) != 0) damaged("it is no graph of this version of usearch");
    const bool bytes = shape_.element == Element::int8;
    const uint8_t wanted[] = {inner_product, bytes ? as_int8 : as_float16, keys_of_64_bits, nodes_of_32_bits};
    if (std::memcmp(head_ + kinds, wanted, sizeof(wanted)) != 0 || head_[multi] != 0 || shape_.width > widest ||
        number_at<uint64_t>(head_ + width) != shape_.width ||
        vector_bytes_ != shape_.width * element_bytes(shape_.element)) {
        damaged("its metric, numbers or width are not those of the index");
    }
    const uint64_t n_present = number_at<uint64_t>(head_ + counts);
    const uint64_t n_deleted = number_at<uint64_t>(head_ + counts + sizeof(uint64_t));
    if (n_present != n_nodes_ || n_deleted != 0 || count(0) != n_nodes_ || n_nodes_ == 0) {
        damaged("its numbers of vectors and nodes differ");
    }
    if (count(1) != shape_.most_neighbors || count(2) != 2 * shape_.most_neighbors) {
        damaged("its numbers of neighbors are wrong");
    }
    if (count(3) > most_levels || count(4) >= n_nodes_ || level(count(4)) != count(3)) {
        damaged("its entry point is not at its highest level");
    }
}

void StoredGraph::check_nodes(Span<uint8_t> stored) {
    highest_ = number_at<uint64_t>(header_ + 3 * sizeof(uint64_t));
    entry_ = static_cast<uint32_t>(number_at<uint64_t>(header_ + 4 * sizeof(uint64_t)));
    counts_.reserve(n_nodes_);
    const uint8_t* node = nodes_;
    uint64_t n_levels = 0, least_row = 0;
    for (size_t i = 0; i < n_nodes_; ++i) {
        const size_t top = level(i);
        if (top > highest_) damaged("a node's level is outside the graph's");
        const size_t n_bytes = base_bytes_ + top * level_bytes_;
        if (n_bytes > static_cast<size_t>(stored.end() - node)) damaged("its nodes do not fit");
        const uint64_t row = number_at<uint64_t>(node);
        if (row >= shape_.n_rows) damaged("a node's row is outside the rows");
        if (row < least_row) damaged("the rows of its nodes do not ascend");
        least_row = row + 1;
        if (std::memcmp(node + sizeof(uint64_t), levels_ + i * sizeof(int16_t), sizeof(int16_t)) != 0) damaged("a node's level is not that of the list of levels");
        check_neighbors(node + node_head, 2 * shape_.most_neighbors, 0);
        for (size_t above = 1; above <= top; ++above) {
            check_neighbors(node + base_bytes_ + (above - 1) * level_bytes_, shape_.most_neighbors, above);
        }
        if (n_levels > std::numeric_limits<uint32_t>::max()) damaged("it has too many levels");
        counts_.add(top);
        n_levels += top;
        node += n_bytes;
    }
    if (node != stored.end()) damaged("it has bytes after its last node");
}

// Checks the neighbors of a node at one level.
void StoredGraph::check_neighbors(const uint8_t* at, size_t most, size_t at_level) const {
    const size_t n = number_at<uint32_t>(at);
    if (n > most) damaged("a node has too many neighbors");
    for (size_t i = 1; i <= n; ++i) {
        const size_t neighbor = number_at<uint32_t>(at + i * word);
        if (neighbor >= n_nodes_) damaged("a node links to one outside the graph");
        if (at_level > 0 && level(neighbor) < at_level) damaged("a node links to one that its level lacks");
    }
}

void StoredGraph::measure() {
    const size_t n = std::min(n_nodes_, measured);
    for (size_t i = 0; i < n; ++i) {
        double squares = 0.0;
        for (size_t j = 0; j < shape_.width; ++j) {
            const double value = reinterpret_cast<const int8_t*>(vectors_ + i * vector_bytes_)[j];
            squares += value * value;
        }
        mean_length_ += std::sqrt(squares) / static_cast<double>(n);
    }
    mean_length_ = std::max(mean_length_, 1.0);
}

}  // namespace lightir
