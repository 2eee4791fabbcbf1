// The border to Python of a whole search: one query in, as arrays or as text, one ranking over all branches out.
#include "bind_hybrid.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind_query.hpp"
#include "hybrid.hpp"
#include "python_arrays.hpp"
#include "python_record.hpp"
#include "python_segments.hpp"

namespace lightir {

namespace {

// What is asked of a search.
struct Asked {
    size_t k, depth, n_threads;
    bool columns;
};

// Branches of a view, bound once: their documents, which of them may be found, and how the branches are joined.
class HybridSearch {
public:
    HybridSearch(const HybridSearch&) = delete;
    HybridSearch& operator=(const HybridSearch&) = delete;
    // parts: (documents, weight, complete, allowed) a branch, in the order of their parts in a sum; allowed is a bitmap a
    // segment or None. ids: DocumentIds, or None where ids ascend with the doc_ords.
    HybridSearch(nb::list parts, const std::string& scale, double rrf_k, nb::object ids)
        : scale_(scale_of(scale)), rrf_k_(rrf_k), ids_(std::move(ids)) {
        if (parts.size() == 0) throw InvalidInput("a search needs one branch at least");
        if (!ids_.is_none()) known_ids_ = &nb::cast<const DocumentIds&>(ids_);
        for (nb::handle part : parts) {
            const auto given = nb::cast<nb::tuple>(part);
            Bound branch{nb::borrow(given[0]), nb::cast<double>(given[1]), nb::cast<bool>(given[2]), nullptr};
            branch.allowed = std::make_unique<AllowedOfAll>(given[3], documents_of(branch.documents).firsts());
            branches_.push_back(std::move(branch));
        }
    }

    // queries: one a branch as `fuse` takes them. allowed: a list of bitmaps a branch, in place of the bound ones, or None.
    // given: a branch's (doc_ords, scores) in place of what it would list, or None; or None for all.
    nb::tuple search(nb::list queries, nb::handle allowed, nb::handle given, size_t k, size_t depth, size_t n_threads,
                     bool columns) const {
        same_length("queries and branches", queries.size(), branches_.size());
        std::vector<std::unique_ptr<BranchQuery>> asked;
        for (size_t i = 0; i < branches_.size(); ++i) {
            asked.push_back(std::make_unique<BranchQuery>(nb::cast<nb::tuple>(queries[i])));
            if (&asked[i]->firsts() != &documents_of(branches_[i].documents).firsts()) {
                throw InvalidInput("a query is for other documents than those that are searched");
            }
        }
        std::vector<Given> lists(branches_.size());
        if (!given.is_none()) {
            const auto all = nb::cast<nb::list>(given);
            same_length("given and branches", all.size(), branches_.size());
            for (size_t i = 0; i < lists.size(); ++i) lists[i] = given_list(all[i]);
        }
        return to_numpy(run(asked, allowed, lists, {k, depth, n_threads, columns}));
    }

    // The best documents for a text's vectors; without columns.
    FusedTop best(const QueryOfText& query, const Asked& how) const {
        std::vector<std::unique_ptr<BranchQuery>> asked;
        for (const Bound& branch : branches_) asked.push_back(std::make_unique<BranchQuery>(branch.documents, query));
        return run(asked, nb::none(), std::vector<Given>(branches_.size()), how);
    }

private:
    struct Bound {
        nb::object documents;
        double weight;
        bool complete;
        std::unique_ptr<AllowedOfAll> allowed;
    };

    using Given = std::optional<std::vector<Hit>>;

    static Given given_list(nb::handle list) {
        if (list.is_none()) return std::nullopt;
        const auto parts = nb::cast<nb::tuple>(list);
        const Array doc_ords(parts[0], "doc_ords", 1), scores(parts[1], "scores", 1);
        same_length("doc_ords and scores", doc_ords.size(), scores.size());
        std::vector<Hit> hits;
        for (size_t i = 0; i < doc_ords.size(); ++i) hits.push_back({doc_ords.span<uint32_t>()[i], scores.span<float>()[i]});
        return hits;
    }

    FusedTop run(const std::vector<std::unique_ptr<BranchQuery>>& asked, nb::handle allowed_now,
                 const std::vector<Given>& given, const Asked& how) const {
        std::vector<std::unique_ptr<AllowedOfAll>> filters;
        if (!allowed_now.is_none()) {
            const auto lists = nb::cast<nb::list>(allowed_now);
            same_length("allowed and branches", lists.size(), branches_.size());
            for (size_t i = 0; i < asked.size(); ++i) {
                filters.push_back(std::make_unique<AllowedOfAll>(lists[i], asked[i]->firsts()));
            }
        }
        Ranked wanted{scale_, rrf_k_, how.k, how.depth, how.columns, nullptr, nullptr};
        if (known_ids_ != nullptr) {
            wanted.firsts = &known_ids_->firsts();
            wanted.ids = &known_ids_->ids();
        }
        const nb::gil_scoped_release released;
        std::vector<std::unique_ptr<Scorer>> scorers;
        std::vector<QueriedBranch> branches;
        for (size_t i = 0; i < asked.size(); ++i) {
            const BranchQuery& query = *asked[i];
            const std::vector<Bitmap>& allowed = (filters.empty() ? branches_[i].allowed : filters[i])->bitmaps;
            scorers.push_back(query.scorer());
            const Given& known = given[i];
            auto top = [&query, &allowed, &known, &how](size_t k, Watched* watched) {
                return known ? *known : query.top(k, how.n_threads, allowed, watched);
            };
            branches.push_back({std::move(top), scorers.back().get(), branches_[i].weight, branches_[i].complete});
        }
        return ranked(branches, wanted);
    }

    Scale scale_;
    double rrf_k_;
    nb::object ids_;
    const DocumentIds* known_ids_ = nullptr;
    std::vector<Bound> branches_;
};

// A search with a query encoder: a text in, the record of its ranking out.
class TextSearch {
public:
    TextSearch(const TextSearch&) = delete;
    TextSearch& operator=(const TextSearch&) = delete;
    // A HybridSearch, a QueryEncoder that makes the vectors of its branches, what reads texts that the encoder's tokenizer
    // refuses, its unknown term, the DocumentIds, and the class of the record: (query_id, doc_ids, scores).
    TextSearch(nb::object search, nb::object encoder, nb::callable by_library, std::optional<uint32_t> unknown,
               nb::object ids, nb::handle record)
        : search_(std::move(search)), encoder_(std::move(encoder)), by_library_(std::move(by_library)),
          unknown_(unknown), ids_(std::move(ids)), record_(record) {}

    nb::object rank(nb::handle query_id, nb::handle text, size_t k, size_t depth, size_t n_threads) const {
        const QueryOfText query = query_of_text(encoder_, text, by_library_, unknown_);
        FusedTop found = nb::cast<const HybridSearch&>(search_).best(query, {k, depth, n_threads, false});
        const nb::list doc_ids = nb::cast<const DocumentIds&>(ids_).texts({found.doc_ords.data(), found.doc_ords.size()});
        return record_(query_id, doc_ids, to_numpy(std::move(found.scores)));
    }

private:
    nb::object search_, encoder_;
    nb::callable by_library_;
    std::optional<uint32_t> unknown_;
    nb::object ids_;
    Record record_;
};

}  // namespace

void bind_hybrid(nb::module_& m) {
    nb::class_<HybridSearch>(m, "HybridSearch")
        .def(nb::init<nb::list, const std::string&, double, nb::object>(), nb::arg(), nb::arg(), nb::arg(),
             nb::arg().none())
        .def("search", &HybridSearch::search, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(),
             nb::arg(), nb::arg());
    nb::class_<TextSearch>(m, "TextSearch")
        .def(nb::init<nb::object, nb::object, nb::callable, std::optional<uint32_t>, nb::object, nb::handle>(), nb::arg(),
             nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg())
        .def("rank", &TextSearch::rank);
}

}  // namespace lightir
