// The border to Python of building graphs.
#include "bind_graph.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>

#include "graph_builder.hpp"
#include "python_arrays.hpp"
#include "python_branches.hpp"

namespace lightir {
namespace {

// Returns the shape of a graph. given: (width, neighbors above level 0).
GraphShape shape_of(const std::string& element, std::pair<size_t, size_t> given, size_t n_rows) {
    const auto [width, most_neighbors] = given;
    if (width == 0 || width > graph_layout::widest) {
        throw InvalidInput("the vectors of a graph have 1 to 65,536 columns, not " + std::to_string(width));
    }
    if (most_neighbors == 0) throw InvalidInput("a node must be allowed to have a neighbor");
    return {graph_element(element), width, n_rows, most_neighbors};
}

// A graph builder, which keeps the arrays that it borrows.
class KeptBuilder {
public:
    // bytes: (GraphBuilder::most_bytes,) uint8, whose vectors are there; it is written. rows: (n,) uint32.
    KeptBuilder(nb::object bytes, nb::object rows, const std::string& element, std::pair<size_t, size_t> shape, size_t candidates) {
        const size_t n_bytes = kept_.keep(bytes, "bytes", 1).span<uint8_t>().size;
        const Span<uint32_t> of_nodes = kept_.keep(rows, "rows", 1).span<uint32_t>();
        const GraphShape wanted = shape_of(element, shape, of_nodes.size);
        if (of_nodes.size == 0) throw InvalidInput("a graph needs a row");
        if (candidates == 0) throw InvalidInput("neighbors are selected among at least one candidate");
        if (!PyArray_Check(bytes.ptr()) || !PyArray_ISWRITEABLE(reinterpret_cast<PyArrayObject*>(bytes.ptr()))) {
            throw InvalidInput("bytes must be a numpy array that can be written");
        }
        same_length("bytes and those of the graph", GraphBuilder::most_bytes(of_nodes.size, wanted), n_bytes);
        uint8_t* written = static_cast<uint8_t*>(array_data(bytes));
        const nb::gil_scoped_release released;
        builder_ = std::make_unique<GraphBuilder>(written, of_nodes, wanted, candidates);
    }
    size_t add(size_t n_threads) {
        const nb::gil_scoped_release released;
        return builder_->add(n_threads);
    }
    size_t n_bytes() const { return builder_->n_bytes(); }

private:
    Kept kept_;
    std::unique_ptr<GraphBuilder> builder_;
};

size_t most_graph_bytes(size_t n, const std::string& element, std::pair<size_t, size_t> shape) {
    return GraphBuilder::most_bytes(n, shape_of(element, shape, n));
}

}  // namespace

void bind_graph(nb::module_& m) {
    nb::class_<KeptBuilder>(m, "GraphBuilder")
        .def(nb::init<nb::object, nb::object, const std::string&, std::pair<size_t, size_t>, size_t>())
        .def("add", &KeptBuilder::add)
        .def("n_bytes", &KeptBuilder::n_bytes);
    m.def("most_graph_bytes", &most_graph_bytes);
}

}  // namespace lightir
