#include "bind_expansions.hpp"

#include <string>

#include "expansions.hpp"
#include "python_arrays.hpp"

namespace lightir {
namespace {

// Returns (indptr, term_ids, weights) of the queries' means.
nb::tuple bind_mean_expansions(nb::handle row_ids, nb::handle row_weights, nb::handle token_ids, nb::handle indptr,
                               size_t vocab_size, size_t n_threads) {
    const Array ids(row_ids, "expansions' term ids", 2), weights(row_weights, "expansions' weights", 2);
    const Array tokens(token_ids, "token_ids", 1), pointers(indptr, "indptr", 1);
    const bool half = weights.dtype() == "float16";
    if (!half && weights.dtype() != "float32") weights.wrong_dtype("float16 or float32");
    same_length("expansions' term ids and weights", ids.size(0), weights.size(0));
    same_length("rows of expansions' term ids and weights", ids.size(1), weights.size(1));
    const Expansions rows{ids.span<uint32_t>().data, weights.data(), half ? Element::float16 : Element::float32,
                          ids.size(0), ids.size(1)};
    const Span<uint32_t> named = tokens.span<uint32_t>();
    const Span<int64_t> offsets = pointers.span<int64_t>();
    check_indptr(offsets, named.size, "indptr");
    SparseQueries means;
    {
        nb::gil_scoped_release released;
        means = mean_expansions(rows, named, offsets, vocab_size, n_threads);
    }
    return nb::make_tuple(to_numpy(std::move(means.indptr)), to_numpy(std::move(means.term_ids)),
                          to_numpy(std::move(means.weights)));
}

}  // namespace

void bind_expansions(nb::module_& m) { m.def("mean_expansions", &bind_mean_expansions); }

}  // namespace lightir
