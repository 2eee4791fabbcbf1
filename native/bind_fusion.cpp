// The border to Python of fusion: the documents of all segments, kept as long as a view; lists in, one ranking out.
#include "bind_fusion.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fusion.hpp"
#include "python_arrays.hpp"
#include "python_segments.hpp"

namespace lightir {

namespace {

nb::object bind_pair_scores(nb::handle doc_ords, const nb::tuple& query) {
    const Array docs(doc_ords, "doc_ords", 1);
    const BranchQuery asked(query);
    const std::unique_ptr<Scorer> scorer = asked.scorer();
    const Span<uint32_t> ords = docs.span<uint32_t>();
    std::vector<float> scores(ords.size);
    {
        nb::gil_scoped_release released;
        scorer->score(ords, scores.data());
    }
    return to_numpy(std::move(scores));
}

nb::tuple bind_fuse(nb::list lists, nb::list queries, std::vector<double> weights, std::vector<bool> complete,
                    const std::string& scale, double rrf_k, size_t k, bool ties) {
    same_length("lists and queries", lists.size(), queries.size());
    same_length("lists and weights", lists.size(), weights.size());
    same_length("lists and complete", lists.size(), complete.size());
    std::vector<std::unique_ptr<Array>> arrays;
    std::vector<std::unique_ptr<BranchQuery>> asked;
    std::vector<std::unique_ptr<Scorer>> scorers;
    std::vector<FusedBranch> branches;
    for (size_t i = 0; i < weights.size(); ++i) {
        const auto pair = nb::cast<nb::tuple>(lists[i]);
        arrays.emplace_back(new Array(pair[0], "doc_ords", 1));
        arrays.emplace_back(new Array(pair[1], "scores", 1));
        asked.emplace_back(new BranchQuery(nb::cast<nb::tuple>(queries[i])));
        scorers.push_back(asked[i]->scorer());
        FusedBranch branch{arrays[2 * i]->span<uint32_t>(), arrays[2 * i + 1]->span<float>(), scorers[i].get(),
                           weights[i], complete[i]};
        same_length("doc_ords and scores", branch.doc_ords.size, branch.scores.size);
        branches.push_back(branch);
    }
    const Scale how = scale_of(scale);
    FusedTop out;
    {
        nb::gil_scoped_release released;
        out = fuse(branches, how, rrf_k, k, ties);
    }
    return to_numpy(std::move(out));
}

}  // namespace

void bind_fusion(nb::module_& m) {
    nb::class_<DenseSegments>(m, "DenseSegments")
        .def(nb::init<nb::list, std::vector<uint32_t>>())
        .def("top_k", &DenseSegments::top_k, nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
    nb::class_<SparseSegments>(m, "SparseSegments")
        .def(nb::init<nb::list, std::vector<uint32_t>, double, double>())
        .def("top_k", &SparseSegments::top_k, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
             nb::arg(), nb::arg().none());
    nb::class_<DocumentIds>(m, "DocumentIds")
        .def(nb::init<nb::list, std::vector<uint32_t>>())
        .def("order", &DocumentIds::order)
        .def("texts", [](const DocumentIds& ids, nb::handle doc_ords) {
            return ids.texts(Array(doc_ords, "doc_ords", 1).span<uint32_t>());
        });
    m.def("pair_scores", &bind_pair_scores);
    m.def("fuse", &bind_fuse);
}

}  // namespace lightir
