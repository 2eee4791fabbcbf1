// Python bindings: check arguments and release the GIL. They contain no algorithms.
#define LIGHTIR_IMPORTS_NUMPY

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind_encoder.hpp"
#include "bind_expansions.hpp"
#include "bind_graph.hpp"
#include "bind_hits.hpp"
#include "bind_query.hpp"
#include "bind_search.hpp"
#include "bind_words.hpp"
#include "codes.hpp"
#include "dense.hpp"
#include "dispatch.hpp"
#include "errors.hpp"
#include "parallel.hpp"
#include "python_arrays.hpp"
#include "sparse.hpp"

using namespace lightir;

namespace {

// Calls use(W{}) with the weights' type.
template <typename Use>
auto with_weights(const Array& weights, const Use& use) {
    if (weights.is<uint8_t>()) return use(uint8_t{});
    if (weights.is<float>()) return use(float{});
    weights.wrong_dtype("uint8 or float32");
}

nb::tuple bind_invert(nb::handle indptr, nb::handle term_ids, nb::handle weights, size_t vocab_size, size_t n_docs) {
    const Array pointers(indptr, "indptr", 1), terms(term_ids, "term_ids", 1), values(weights, "weights", 1);
    same_length("term_ids and weights", terms.size(), values.size());
    same_length("indptr and n_docs + 1", pointers.size(), n_docs + 1);
    if (n_docs >= 0xffffffffu) throw InvalidInput("more than 4,294,967,294 documents");
    if (vocab_size > (size_t{1} << 32)) throw InvalidInput("vocab_size is above 2 ** 32");
    return with_weights(values, [&](auto kind) {
        using W = decltype(kind);
        const SparseRows<W> rows{pointers.span<int64_t>(), terms.span<uint32_t>(), values.span<W>()};
        OwnedPostings<W> out;
        {
            nb::gil_scoped_release released;
            out = invert(rows, vocab_size, n_docs);
        }
        return nb::make_tuple(to_numpy(std::move(out.term_ids)), to_numpy(std::move(out.term_indptr)),
                              to_numpy(std::move(out.run_blocks)), to_numpy(std::move(out.run_indptr)),
                              to_numpy(std::move(out.offsets)), to_numpy(std::move(out.weights)));
    });
}

nb::tuple bind_sparse_top_k(nb::tuple postings, size_t vocab_size, size_t n_docs, nb::handle query_indptr,
                            nb::handle query_term_ids, nb::handle query_weights, size_t k, size_t n_threads,
                            nb::handle allowed) {
    const Array term_ids(postings[0], "term_ids", 1), term_indptr(postings[1], "term_indptr", 1);
    const Array run_blocks(postings[2], "run_blocks", 1), run_indptr(postings[3], "run_indptr", 1);
    const Array offsets(postings[4], "offsets", 1), weights(postings[5], "weights", 1);
    same_length("term_ids + 1 and term_indptr", term_ids.size() + 1, term_indptr.size());
    same_length("run_blocks + 1 and run_indptr", run_blocks.size() + 1, run_indptr.size());
    same_length("offsets and weights", offsets.size(), weights.size());
    const Array pointers(query_indptr, "query_indptr", 1), terms(query_term_ids, "query_term_ids", 1);
    const Array values(query_weights, "query_weights", 1);
    const Span<int64_t> indptr = pointers.span<int64_t>();
    const Span<uint32_t> ids = terms.span<uint32_t>();
    const Span<float> floats = values.span<float>();
    same_length("query_term_ids and query_weights", ids.size, floats.size);
    check_indptr(indptr, ids.size, "query_indptr");
    if (n_docs >= most_documents) throw InvalidInput("more than 4,294,967,295 documents");
    const Allowed filter(allowed, n_docs);
    return with_weights(weights, [&](auto kind) {
        using W = decltype(kind);
        const PostingsView<W> view{vocab_size,
                                   n_docs,
                                   term_ids.span<uint32_t>(),
                                   term_indptr.span<int64_t>(),
                                   run_blocks.span<uint32_t>(),
                                   run_indptr.span<int64_t>(),
                                   offsets.span<uint16_t>(),
                                   weights.span<W>()};
        std::vector<std::vector<Hit>> hits(indptr.size - 1);
        {
            nb::gil_scoped_release released;
            parallel_for(hits.size(), n_threads, [&](size_t q) {
                const size_t begin = static_cast<size_t>(indptr[q]), size = static_cast<size_t>(indptr[q + 1]) - begin;
                const SparseQuery query{{ids.data + begin, size}, {floats.data + begin, size}};
                hits[q] = sparse_top_k(view, query, k, filter.bitmap);
            });
        }
        return to_numpy(hits);
    });
}

nb::tuple bind_dense_top_k(nb::handle rows, nb::handle scales, nb::handle queries, size_t k, size_t n_threads,
                           nb::handle allowed, nb::handle copies, nb::handle codes) {
    const Rows matrix(rows, scales, "rows");
    const SketchesOf smaller(copies, codes, matrix.matrix);
    const Array vectors(queries, "queries", 2);
    const Span<float> values = vectors.span<float>();
    matrix.check_dim(vectors.size(1));
    const Allowed filter(allowed, matrix.matrix.n_rows);
    std::vector<std::vector<Hit>> hits;
    {
        nb::gil_scoped_release released;
        hits = dense_top_k(matrix.matrix, values.data, vectors.size(0), vectors.size(1), k, n_threads, filter.bitmap,
                           smaller.sketches);
    }
    return to_numpy(hits);
}

nb::tuple bind_code_rows(nb::handle rows, nb::handle scales, nb::handle center) {
    const Rows given(rows, scales, "rows");
    const Matrix& matrix = given.matrix;
    const Array middle(center, "center", 1);
    const Span<float> centers = middle.span<float>();
    same_length("columns of rows and center", matrix.width, centers.size);
    const size_t n_columns = (matrix.width + codes_a_byte - 1) / codes_a_byte;
    const size_t n_blocks = (matrix.n_rows + coded_block - 1) / coded_block;
    const nb::object blocks = new_array<uint8_t, 3>({n_blocks, n_columns, coded_block});
    const nb::object row_scales = new_array<uint16_t, 1>({matrix.n_rows}), errors = new_array<uint16_t, 1>({matrix.n_rows});
    uint8_t* bytes = static_cast<uint8_t*>(array_data(blocks));
    uint16_t* scales_out = static_cast<uint16_t*>(array_data(row_scales));
    uint16_t* errors_out = static_cast<uint16_t*>(array_data(errors));
    {
        nb::gil_scoped_release released;
        std::fill(bytes, bytes + n_blocks * n_columns * coded_block, uint8_t{0});
        code_rows(matrix, centers.data, bytes, scales_out, errors_out);
    }
    return nb::make_tuple(blocks, row_scales, errors);
}

nb::object bind_dense_pair_scores(nb::handle rows, nb::handle scales, nb::handle doc_ords, nb::handle query) {
    const Rows matrix(rows, scales, "rows");
    const Array docs(doc_ords, "doc_ords", 1), vector(query, "query", 1);
    const Span<float> values = vector.span<float>();
    const Span<uint32_t> ords = docs.span<uint32_t>();
    matrix.check_dim(values.size);
    std::vector<float> scores(ords.size);
    {
        nb::gil_scoped_release released;
        dense_pair_scores(matrix.matrix, ords, values.data, values.size, scores.data());
    }
    return to_numpy(std::move(scores));
}

// Translates C++ exceptions to those of lightir.errors.
void translate(const std::exception_ptr& failure, void*) {
    const auto raise = [](const char* type, const char* text) {
        PyErr_SetString(nb::module_::import_("lightir.errors").attr(type).ptr(), text);
    };
    try {
        std::rethrow_exception(failure);
    } catch (const InvalidInput& e) {
        raise("InvalidInput", e.what());
    } catch (const DamagedArrays& e) {
        raise("FormatError", (std::string(e.what()) + "; `lightir verify` says which file of the index").c_str());
    }
}

}  // namespace

NB_MODULE(_native, m) {
    if (PyArray_ImportNumPyAPI() < 0) nb::raise_python_error();
    nb::set_leak_warnings(false);  // a daemon thread that is searching at exit is not a leak
    nb::register_exception_translator(translate);
    use_level_from_environment();
    m.def("dispatch", [] { return std::string(level().name); });
    m.def("available", &available_levels);
    m.def("use_level", &use_level, nb::arg("name"));
    m.def("invert", &bind_invert);
    m.def("sparse_top_k", &bind_sparse_top_k, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
          nb::arg(), nb::arg(), nb::arg().none());
    m.def("dense_top_k", &bind_dense_top_k, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
          nb::arg().none(), nb::arg().none(), nb::arg().none());
    m.def("code_rows", &bind_code_rows, nb::arg(), nb::arg().none(), nb::arg());
    m.def("dense_pair_scores", &bind_dense_pair_scores, nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
    bind_search(m);
    bind_query(m);
    bind_expansions(m);
    bind_hits(m);
    bind_words(m);
    bind_graph(m);
    bind_encoder(m);
}
