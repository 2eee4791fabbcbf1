#include "graph.hpp"

#include <cstring>
#include <string>

#include "errors.hpp"

namespace lightir {
namespace {

constexpr size_t matrix_head = 8;   // uint32 rows and bytes per row
constexpr size_t file_head = 64;    // what the numbers are
constexpr size_t graph_head = 40;   // five uint64: nodes, neighbors, neighbors at level 0, highest level, entry point
constexpr size_t node_head = 10;    // uint64 key, int16 level
constexpr size_t word = sizeof(uint32_t);
constexpr size_t highest_level = 32767;

[[noreturn]] void damaged(const std::string& what) { throw DamagedArrays("the graph is damaged: " + what); }

// Returns a number at any address.
template <typename T>
T number(const uint8_t* at) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return value;
}

// The parts of a stored graph, whose sizes are checked.
struct Layout {
    explicit Layout(Span<uint8_t> stored) {
        if (stored.size < matrix_head + file_head + graph_head) damaged("it is too short");
        n_nodes = number<uint32_t>(stored.data);
        vector_bytes = number<uint32_t>(stored.data + word);
        const size_t left = stored.size - matrix_head - file_head - graph_head;
        if (vector_bytes == 0 || n_nodes > left / vector_bytes) damaged("its vectors do not fit");
        head = stored.data + matrix_head + n_nodes * vector_bytes;
        header = head + file_head;
        if ((left - n_nodes * vector_bytes) / sizeof(int16_t) < n_nodes) damaged("its levels do not fit");
        levels = header + graph_head;
        nodes = levels + n_nodes * sizeof(int16_t);
    }

    uint64_t field(size_t i) const { return number<uint64_t>(header + i * sizeof(uint64_t)); }
    int16_t level(size_t node) const { return number<int16_t>(levels + node * sizeof(int16_t)); }

    size_t n_nodes, vector_bytes;
    const uint8_t *head, *header, *levels, *nodes;
};

// Checks that a graph has the settings of an empty one and as many nodes as vectors.
void check_heads(const Layout& graph, const Layout& empty) {
    constexpr size_t version = 9, kinds = 13, counts = 17, width = 33, multi = 41;
    const auto differs = [&](size_t first, size_t last) {
        return std::memcmp(graph.head + first, empty.head + first, last - first) != 0;
    };
    if (differs(0, version)) damaged("it is no graph of this version of usearch");
    if (differs(kinds, counts) || differs(width, multi + 1) || graph.vector_bytes != empty.vector_bytes) {
        damaged("its metric, numbers or width are not those of the index");
    }
    const uint64_t n_present = number<uint64_t>(graph.head + counts);
    const uint64_t n_deleted = number<uint64_t>(graph.head + counts + sizeof(uint64_t));
    if (n_present != graph.n_nodes || n_deleted != 0 || graph.field(0) != graph.n_nodes || graph.n_nodes == 0) {
        damaged("its numbers of vectors and nodes differ");
    }
    if (graph.field(1) != empty.field(1) || graph.field(2) != empty.field(2)) damaged("its numbers of neighbors are wrong");
    if (graph.field(3) > highest_level || graph.field(4) >= graph.n_nodes ||
        graph.level(graph.field(4)) != static_cast<int16_t>(graph.field(3))) {
        damaged("its entry point is not at its highest level");
    }
}

// Checks the neighbors of a node at one level.
void check_neighbors(const Layout& graph, const uint8_t* at, size_t most, int16_t level) {
    const size_t n = number<uint32_t>(at);
    if (n > most) damaged("a node has too many neighbors");
    for (size_t i = 1; i <= n; ++i) {
        const size_t neighbor = number<uint32_t>(at + i * word);
        if (neighbor >= graph.n_nodes) damaged("a node links to one outside the graph");
        if (level > 0 && graph.level(neighbor) < level) damaged("a node links to one that its level lacks");
    }
}

}  // namespace

void check_graph(Span<uint8_t> stored, Span<uint8_t> empty, size_t n_rows) {
    const Layout graph(stored), settings(empty);
    check_heads(graph, settings);
    const size_t most_above = graph.field(1), most_base = graph.field(2);
    const int16_t highest = static_cast<int16_t>(graph.field(3));
    const size_t base_bytes = word * (1 + most_base), above_bytes = word * (1 + most_above);
    const uint8_t* node = graph.nodes;
    for (size_t i = 0; i < graph.n_nodes; ++i) {
        const int16_t level = graph.level(i);
        if (level < 0 || level > highest) damaged("a node's level is outside the graph's");
        const size_t n_bytes = node_head + base_bytes + static_cast<size_t>(level) * above_bytes;
        if (n_bytes > static_cast<size_t>(stored.end() - node)) damaged("its nodes do not fit");
        if (number<uint64_t>(node) >= n_rows) damaged("a node's key is outside the rows");
        if (number<int16_t>(node + sizeof(uint64_t)) != level) damaged("a node's level is not that of the list of levels");
        check_neighbors(graph, node + node_head, most_base, 0);
        for (int16_t above = 1; above <= level; ++above) {
            const size_t before = node_head + base_bytes + static_cast<size_t>(above - 1) * above_bytes;
            check_neighbors(graph, node + before, most_above, above);
        }
        node += n_bytes;
    }
    if (node != stored.end()) damaged("it has bytes after its last node");
}

}  // namespace lightir
