// The border to Python of search: n queries in, as vectors or as texts, one ranking for each over all branches out.
#include "bind_search.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind_query.hpp"
#include "candidates.hpp"
#include "python_arrays.hpp"
#include "python_branches.hpp"
#include "python_record.hpp"

namespace lightir {

namespace {

// Returns an argument that must be a whole number of at least `least`.
size_t whole_number(const char* name, nb::handle value, Py_ssize_t least) {
    const Py_ssize_t number = PyNumber_AsSsize_t(value.ptr(), nullptr);
    if (number == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        throw InvalidInput(std::string(name) + " must be a whole number, but is " + nb::cast<std::string>(nb::repr(value)));
    }
    if (number < least) {
        throw InvalidInput(std::string(name) + (least == 0 ? " must not be negative, but is " : " must be at least 1, but is ") +
                           std::to_string(number));
    }
    return static_cast<size_t>(number);
}

// Parameters of a search besides its queries: (k, depth, n_threads, columns, excluded | None, also | None). excluded: (indptr,
// doc_ords), the documents that each query is not given.
class Request {
public:
    explicit Request(const nb::tuple& given) {
        options.k = whole_number("k", given[0], 0);
        options.depth = whole_number("depth", given[1], 0);
        options.n_threads = whole_number("threads", given[2], 1);
        options.columns = nb::cast<bool>(given[3]);
        if (!given[4].is_none()) exclude(nb::cast<nb::tuple>(given[4]));
        if (!given[5].is_none()) options.also = (also_ = std::make_unique<Array>(given[5], "also", 1))->span<uint32_t>();
    }
    CandidateOptions options;

private:
    void exclude(const nb::tuple& given) {
        indptr_ = std::make_unique<Array>(given[0], "excluded_indptr", 1);
        excluded_ = std::make_unique<Array>(given[1], "excluded", 1);
        options.excluded_indptr = indptr_->span<int64_t>();
        options.excluded = excluded_->span<uint32_t>();
        check_indptr(options.excluded_indptr, options.excluded.size, "excluded_indptr");
    }

    std::unique_ptr<Array> indptr_, excluded_, also_;
};

// Branches of a view, bound once: their documents, which of them may be found, how the branches are joined, and what makes
// vectors of texts.
class CandidateSearch {
public:
    CandidateSearch(const CandidateSearch&) = delete;
    CandidateSearch& operator=(const CandidateSearch&) = delete;
    // parts: (documents, weight, complete, allowed, (low, high)) per branch, in the order of the sum; allowed is a list of one
    // bitmap per segment, or None; low and high are those of SearchedBranch. ids: DocumentIds, or None where ids ascend with the doc_ords. texts: None, or (QueryEncoder,
    // by_library, unknown): an encoder that makes the vectors of all branches, the function that reads texts that its
    // tokenizer refuses, and its unknown term. named: None, or (DocumentIds, class): the class of a ranking with the fields
    // query_id, doc_ids and scores. pending: None, or (flags by doc_ord, whether the last branch is fused or only ranks
    // pending documents).
    CandidateSearch(nb::list parts, const std::string& scale, double rrf_k, nb::object ids, nb::object texts,
                    nb::object named, nb::object pending)
        : scale_(scale_of(scale)), rrf_k_(rrf_k), ids_(std::move(ids)) {
        if (parts.size() == 0) throw InvalidInput("a search needs at least one branch");
        if (!ids_.is_none()) known_ids_ = &nb::cast<const DocumentIds&>(ids_);
        for (nb::handle part : parts) {
            const auto given = nb::cast<nb::tuple>(part);
            Bound branch{nb::borrow(given[0]), nb::cast<double>(given[1]), nb::cast<bool>(given[2]), nullptr, 0.0, 1.0};
            std::tie(branch.low, branch.high) = nb::cast<std::pair<double, double>>(given[4]);
            branch.allowed = std::make_unique<AllowedOfAll>(given[3], documents_of(branch.documents).firsts());
            branches_.push_back(std::move(branch));
        }
        if (!named.is_none()) {
            const auto given = nb::cast<nb::tuple>(named);
            names_object_ = nb::borrow(given[0]);
            names_ = &nb::cast<const DocumentIds&>(names_object_);
            ranking_ = std::make_unique<Record>(given[1]);
        }
        if (!pending.is_none()) {
            const auto given = nb::cast<nb::tuple>(pending);
            flags_ = nb::borrow(given[0]);
            pending_ = std::make_unique<Array>(flags_, "pending", 1);
            keep_few(pending_->span<uint8_t>());
            fuses_last_ = nb::cast<bool>(given[1]);
            if (!fuses_last_ && branches_.size() == 1) throw InvalidInput("no branch is fused");
        }
        if (texts.is_none()) return;
        const auto given = nb::cast<nb::tuple>(texts);
        encoder_ = nb::borrow(given[0]);
        by_library_ = nb::cast<nb::callable>(given[1]);
        unknown_ = nb::cast<std::optional<uint32_t>>(given[2]);
    }

    // queries: per branch a batch of n queries, see GivenQueries, or None where lists with a function are given. lists: per
    // branch lists in place of those that the kernel would make, see ListedQueries, or None; or None for all. allowed: per
    // branch a list of bitmaps, in place of the bound ones; or None. query_ids: n ids, to return rankings; or None, to return
    // candidates as arrays.
    nb::object search(nb::list queries, nb::handle lists, nb::handle allowed, const nb::tuple& request,
                      nb::handle query_ids) const {
        same_length("queries and branches", queries.size(), branches_.size());
        std::vector<std::unique_ptr<GivenQueries>> given(branches_.size());
        std::vector<DocumentQueries*> known(branches_.size(), nullptr);
        for (size_t b = 0; b < branches_.size(); ++b) {
            if (queries[b].is_none()) continue;
            given[b] = std::make_unique<GivenQueries>(nb::cast<nb::tuple>(queries[b]));
            known[b] = given[b]->queries.get();
            if (&known[b]->documents() != &documents_of(branches_[b].documents)) {
                throw InvalidInput("queries are for other documents than those that are searched");
            }
        }
        std::vector<std::unique_ptr<ListedQueries>> listed(branches_.size());
        if (!lists.is_none()) {
            const auto all = nb::cast<nb::list>(lists);
            same_length("lists and branches", all.size(), branches_.size());
            for (size_t b = 0; b < branches_.size(); ++b) {
                if (all[b].is_none()) continue;
                listed[b] = std::make_unique<ListedQueries>(nb::cast<nb::tuple>(all[b]), known[b]);
            }
        }
        std::optional<size_t> n_queries;
        std::vector<BranchQueries*> asked;
        for (size_t b = 0; b < branches_.size(); ++b) {
            if (known[b] == nullptr && listed[b] == nullptr) throw InvalidInput("a branch has neither queries nor lists");
            for (const size_t n : {known[b] == nullptr ? listed[b]->size() : known[b]->size(),
                                   listed[b] == nullptr ? known[b]->size() : listed[b]->size()}) {
                same_length("the branches' batches of queries", n_queries.value_or(n), n);
                n_queries = n;
            }
            if (listed[b] != nullptr) asked.push_back(listed[b].get());
            else asked.push_back(known[b]);
        }
        return run(asked, known, *n_queries, allowed, Request(request), query_ids);
    }

    // texts: n texts, for branches that the encoder makes vectors for.
    nb::object search_texts(const nb::tuple& texts, nb::handle allowed, const nb::tuple& request, nb::handle query_ids) const {
        if (!encoder_.is_valid()) throw InvalidInput("a search without an encoder takes vectors");
        const Request asked(request);
        const TextVectors vectors = vectors_of_texts(encoder_, texts, asked.options.n_threads, by_library_, unknown_);
        std::vector<std::unique_ptr<DocumentQueries>> queries;
        std::vector<BranchQueries*> branches;
        std::vector<DocumentQueries*> known;
        for (const Bound& branch : branches_) {
            queries.push_back(queries_of(branch, vectors));
            branches.push_back(queries.back().get());
            known.push_back(queries.back().get());
        }
        return run(branches, known, texts.size(), allowed, asked, query_ids);
    }

private:
    struct Bound {
        nb::object documents;
        double weight;
        bool complete;
        std::unique_ptr<AllowedOfAll> allowed;
        double low, high;
    };

    // Lists the pending documents if scoring them costs less than searching all.
    void keep_few(Span<uint8_t> flags) {
        constexpr size_t searched_per_scored = 256, at_least = 16;
        const size_t most = std::max(at_least, flags.size / searched_per_scored);
        for (size_t doc = 0; doc < flags.size && few_pending_.size() <= most; ++doc) {
            if (flags[doc] != 0) few_pending_.push_back(static_cast<uint32_t>(doc));
        }
        if (few_pending_.size() > most) few_pending_.clear();
    }

    static std::unique_ptr<DocumentQueries> queries_of(const Bound& branch, const TextVectors& vectors) {
        if (nb::isinstance<DenseSegments>(branch.documents)) {
            return std::make_unique<DenseQueries>(nb::cast<const DenseSegments&>(branch.documents),
                                                  Span<float>{vectors.dense.data(), vectors.dense.size()},
                                                  vectors.n_texts, vectors.dim);
        }
        const SparseQueries& counts = vectors.sparse;
        const SegmentedQuery terms{{counts.term_ids.data(), counts.term_ids.size()},
                                   {counts.weights.data(), counts.weights.size()}};
        return std::make_unique<TermQueries>(nb::cast<const SparseSegments&>(branch.documents),
                                             Span<int64_t>{counts.indptr.data(), counts.indptr.size()}, terms, 1.0);
    }

    nb::object run(const std::vector<BranchQueries*>& queries, const std::vector<DocumentQueries*>& known, size_t n_queries,
                   nb::handle allowed_now, const Request& request, nb::handle query_ids) const {
        std::vector<std::unique_ptr<AllowedOfAll>> filters;
        if (!allowed_now.is_none()) {
            const auto all = nb::cast<nb::list>(allowed_now);
            same_length("allowed and branches", all.size(), branches_.size());
            for (size_t b = 0; b < branches_.size(); ++b) {
                filters.push_back(std::make_unique<AllowedOfAll>(all[b], documents_of(branches_[b].documents).firsts()));
            }
        }
        CandidateOptions options = request.options;
        options.scale = scale_;
        options.rrf_k = rrf_k_;
        if (options.excluded_indptr.size != 0) {
            same_length("queries + 1 and excluded_indptr", n_queries + 1, options.excluded_indptr.size);
        }
        options.pending = pending_ == nullptr ? Span<uint8_t>{} : pending_->span<uint8_t>();
        options.fuses_last = fuses_last_;
        options.few_pending = {few_pending_.data(), few_pending_.size()};
        if (known_ids_ != nullptr) {
            options.firsts = &known_ids_->firsts();
            options.ids = &known_ids_->ids();
        }
        std::vector<SearchedBranch> branches;
        for (size_t b = 0; b < branches_.size(); ++b) {
            if (known[b] != nullptr) known[b]->allowed = &(filters.empty() ? branches_[b].allowed : filters[b])->bitmaps;
            branches.push_back({queries[b], branches_[b].weight, branches_[b].complete, branches_[b].low, branches_[b].high});
        }
        std::vector<FusedTop> rankings;
        {
            const nb::gil_scoped_release released;
            rankings = lightir::search(branches, n_queries, options);
        }
        if (query_ids.is_none()) return to_numpy(std::move(rankings), branches_.size(), options.columns);
        return records(std::move(rankings), nb::cast<nb::list>(query_ids));
    }

    nb::list records(std::vector<FusedTop> rankings, const nb::list& query_ids) const {
        if (names_ == nullptr) throw InvalidInput("a search without documents' ids returns no rankings");
        same_length("queries and query_ids", rankings.size(), query_ids.size());
        nb::list out;
        for (size_t i = 0; i < rankings.size(); ++i) {
            const nb::list doc_ids = names_->texts({rankings[i].doc_ords.data(), rankings[i].doc_ords.size()});
            out.append((*ranking_)(query_ids[i], doc_ids, to_numpy(std::move(rankings[i].scores))));
        }
        return out;
    }

    Scale scale_;
    double rrf_k_;
    nb::object ids_;
    const DocumentIds* known_ids_ = nullptr;
    nb::object names_object_;
    const DocumentIds* names_ = nullptr;
    std::unique_ptr<Record> ranking_;
    std::vector<Bound> branches_;
    nb::object flags_;
    std::unique_ptr<Array> pending_;
    std::vector<uint32_t> few_pending_;
    bool fuses_last_ = true;
    nb::object encoder_;
    nb::callable by_library_;
    std::optional<uint32_t> unknown_;
};

nb::object bind_pair_scores(nb::handle doc_ords, const nb::tuple& queries, size_t query) {
    const Array docs(doc_ords, "doc_ords", 1);
    const GivenQueries given(queries);
    if (query >= given.queries->size()) throw InvalidInput("there is no query " + std::to_string(query));
    const std::unique_ptr<Scorer> scorer = given.queries->scorer(query);
    const Span<uint32_t> ords = docs.span<uint32_t>();
    std::vector<float> scores(ords.size);
    {
        nb::gil_scoped_release released;
        scorer->score(ords, scores.data());
    }
    return to_numpy(std::move(scores));
}

nb::object bind_normalize(nb::handle scores, nb::handle listed, nb::handle ranks, const std::string& scale, double rrf_k) {
    const Array values(scores, "scores", 1), list(listed, "listed", 1), places(ranks, "ranks", 1);
    same_length("scores and ranks", values.size(), places.size());
    return to_numpy(normalized(values.span<float>(), list.span<float>(), places.span<int64_t>(), scale_of(scale), rrf_k));
}

}  // namespace

void bind_search(nb::module_& m) {
    nb::class_<KeptGraph>(m, "StoredGraph").def(nb::init<nb::object, const std::string&, size_t, size_t, size_t>());
    nb::class_<DenseSegments>(m, "DenseSegments")
        .def("__init__", [](DenseSegments* self, nb::list parts, std::vector<uint32_t> firsts,
                            std::pair<size_t, size_t> costs) {
            new (self) DenseSegments(std::move(parts), std::move(firsts), {costs.first, costs.second});
        });
    nb::class_<SparseSegments>(m, "SparseSegments").def(nb::init<nb::list, std::vector<uint32_t>, double, double>());
    nb::class_<DocumentIds>(m, "DocumentIds")
        .def(nb::init<nb::list, std::vector<uint32_t>>())
        .def("order", &DocumentIds::order)
        .def("texts", [](const DocumentIds& ids, nb::handle doc_ords) {
            return ids.texts(Array(doc_ords, "doc_ords", 1).span<uint32_t>());
        });
    nb::class_<CandidateSearch>(m, "CandidateSearch")
        .def(nb::init<nb::list, const std::string&, double, nb::object, nb::object, nb::object, nb::object>(), nb::arg(),
             nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none())
        .def("search", &CandidateSearch::search, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(),
             nb::arg().none())
        .def("search_texts", &CandidateSearch::search_texts, nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none());
    m.def("pair_scores", &bind_pair_scores);
    m.def("normalize", &bind_normalize);
}

}  // namespace lightir
