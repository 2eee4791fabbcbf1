#include "graph.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "errors.hpp"

namespace lightir {
namespace {

constexpr size_t matrix_head = 8;   // uint32 rows and bytes per row
constexpr size_t file_head = 64;    // what the numbers are
constexpr size_t graph_head = 40;   // five uint64: nodes, neighbors, neighbors at level 0, highest level, entry point
constexpr size_t node_head = 10;    // uint64 row, int16 level
constexpr size_t word = sizeof(uint32_t);
constexpr size_t most_levels = 32767;
constexpr size_t widest = 65536;    // products of wider int8 vectors could exceed 32 bits
constexpr size_t measured = 64;     // vectors

// The first bytes of the head: a name, and the number of the version that defines the layout.
constexpr uint8_t version[] = {'u', 's', 'e', 'a', 'r', 'c', 'h', 2, 0};
// usearch's numbers for the inner product, the kinds of vectors' numbers, uint64 keys and uint32 nodes.
constexpr uint8_t inner_product = 'i', as_int8 = 23, as_float16 = 12, keys_of_64_bits = 14, nodes_of_32_bits = 15;

[[noreturn]] void damaged(const std::string& what) { throw DamagedArrays("the graph is damaged: " + what); }

}  // namespace

StoredGraph::StoredGraph(Span<uint8_t> stored, const GraphShape& shape) : shape_(shape) {
    if (stored.size < matrix_head + file_head + graph_head) damaged("it is too short");
    n_nodes_ = number_at<uint32_t>(stored.data);
    vector_bytes_ = number_at<uint32_t>(stored.data + word);
    const size_t left = stored.size - matrix_head - file_head - graph_head;
    if (vector_bytes_ == 0 || n_nodes_ > left / vector_bytes_) damaged("its vectors do not fit");
    vectors_ = stored.data + matrix_head;
    head_ = vectors_ + n_nodes_ * vector_bytes_;
    header_ = head_ + file_head;
    if ((left - n_nodes_ * vector_bytes_) / sizeof(int16_t) < n_nodes_) damaged("its levels do not fit");
    levels_ = header_ + graph_head;
    nodes_ = levels_ + n_nodes_ * sizeof(int16_t);
    check_head();
    check_nodes(stored);
    if (shape_.element == Element::int8) measure();
}

void StoredGraph::check_head() const {
    constexpr size_t kinds = 13, counts = 17, width = 33, multi = 41;
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
    if (count(3) > most_levels || count(4) >= n_nodes_ || level(count(4)) != static_cast<int16_t>(count(3))) {
        damaged("its entry point is not at its highest level");
    }
}

void StoredGraph::check_nodes(Span<uint8_t> stored) {
    base_bytes_ = node_head + word * (1 + 2 * shape_.most_neighbors);
    level_bytes_ = word * (1 + shape_.most_neighbors);
    highest_ = number_at<uint64_t>(header_ + 3 * sizeof(uint64_t));
    entry_ = static_cast<uint32_t>(number_at<uint64_t>(header_ + 4 * sizeof(uint64_t)));
    levels_before_.reserve(n_nodes_);
    const uint8_t* node = nodes_;
    uint64_t n_levels = 0, least_row = 0;
    for (size_t i = 0; i < n_nodes_; ++i) {
        const int16_t top = level(i);
        if (top < 0 || static_cast<size_t>(top) > highest_) damaged("a node's level is outside the graph's");
        const size_t n_bytes = base_bytes_ + static_cast<size_t>(top) * level_bytes_;
        if (n_bytes > static_cast<size_t>(stored.end() - node)) damaged("its nodes do not fit");
        const uint64_t row = number_at<uint64_t>(node);
        if (row >= shape_.n_rows) damaged("a node's row is outside the rows");
        if (row < least_row) damaged("the rows of its nodes do not ascend");
        least_row = row + 1;
        if (number_at<int16_t>(node + sizeof(uint64_t)) != top) damaged("a node's level is not that of the list of levels");
        check_neighbors(node + node_head, 2 * shape_.most_neighbors, 0);
        for (int16_t above = 1; above <= top; ++above) {
            check_neighbors(node + base_bytes_ + static_cast<size_t>(above - 1) * level_bytes_, shape_.most_neighbors, above);
        }
        if (n_levels > std::numeric_limits<uint32_t>::max()) damaged("it has too many levels");
        levels_before_.push_back(static_cast<uint32_t>(n_levels));
        n_levels += static_cast<uint64_t>(top);
        node += n_bytes;
    }
    if (node != stored.end()) damaged("it has bytes after its last node");
}

// Checks the neighbors of a node at one level.
void StoredGraph::check_neighbors(const uint8_t* at, size_t most, int16_t at_level) const {
    const size_t n = number_at<uint32_t>(at);
    if (n > most) damaged("a node has too many neighbors");
    for (size_t i = 1; i <= n; ++i) {
        const size_t neighbor = number_at<uint32_t>(at + i * word);
        if (neighbor >= n_nodes_) damaged("a node links to one outside the graph");
        if (at_level > 0 && level(neighbor) < at_level) damaged("a node links to one that its level lacks");
    }
}

Neighbors StoredGraph::neighbors(uint32_t node, size_t at_level) const {
    const uint8_t* at = head_of(node) + (at_level == 0 ? node_head : base_bytes_ + (at_level - 1) * level_bytes_);
    return {at + word, number_at<uint32_t>(at)};
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
