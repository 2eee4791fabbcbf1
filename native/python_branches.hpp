// The documents of all segments for Python: arrays that are kept as long as a view, and queries for them.
#pragma once

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind_query.hpp"
#include "candidates.hpp"
#include "fusion.hpp"
#include "graph_search.hpp"
#include "parallel.hpp"
#include "python_arrays.hpp"
#include "segments.hpp"

namespace lightir {

// Arrays that are borrowed for long; their owners are kept.
class Kept {
public:
    const Array& keep(nb::handle object, const char* name, int ndim) {
        owners_.push_back(nb::borrow(object));
        arrays_.emplace_back(new Array(object, name, ndim));
        return *arrays_.back();
    }

private:
    std::vector<nb::object> owners_;
    std::vector<std::unique_ptr<Array>> arrays_;
};

// A bitmap a segment, each of them or all optional.
class AllowedOfAll {
public:
    AllowedOfAll(nb::handle object, const FirstOrds& firsts) : bitmaps(firsts.n_segments()) {
        if (object.is_none()) return;
        const auto parts = nb::cast<nb::list>(object);
        same_length("allowed and segments", parts.size(), bitmaps.size());
        for (size_t i = 0; i < bitmaps.size(); ++i) {
            kept_.emplace_back(new Allowed(parts[i], firsts[i + 1] - firsts[i]));
            bitmaps[i] = kept_.back()->bitmap;
        }
    }
    std::vector<Bitmap> bitmaps;

private:
    std::vector<std::unique_ptr<Allowed>> kept_;
};

// The documents of a branch.
class Documents {
public:
    explicit Documents(std::vector<uint32_t> firsts) : firsts_(std::move(firsts)) {}

    const FirstOrds& firsts() const { return firsts_; }
    size_t n_segments() const { return firsts_.n_segments(); }

    // Whether a list of one query usually takes many times as long as a thread takes to start.
    bool are_many() const { return firsts_[n_segments()] >= size_t{1} << 18; }

protected:
    FirstOrds firsts_;
};

// Returns the kind of the vectors of a graph.
inline Element graph_element(const std::string& name) {
    if (name != "int8" && name != "float16") throw InvalidInput("a graph has int8 or float16 vectors");
    return name == "int8" ? Element::int8 : Element::float16;
}

// A graph over the dense rows of a segment, which keeps its bytes.
class KeptGraph {
public:
    KeptGraph(const KeptGraph&) = delete;
    KeptGraph& operator=(const KeptGraph&) = delete;
    KeptGraph(nb::object stored, const std::string& element, size_t width, size_t n_rows, size_t most_neighbors) {
        const Span<uint8_t> bytes = kept_.keep(stored, "stored", 1).span<uint8_t>();
        const Element kind = graph_element(element);
        const nb::gil_scoped_release released;
        graph_ = std::make_unique<StoredGraph>(bytes, GraphShape{kind, width, n_rows, most_neighbors});
    }

    const StoredGraph& graph() const { return *graph_; }

private:
    Kept kept_;
    std::unique_ptr<StoredGraph> graph_;
};

class DenseSegments : public Documents {
public:
    DenseSegments(const DenseSegments&) = delete;
    DenseSegments& operator=(const DenseSegments&) = delete;
    // Parts: (rows, scales | None, copies | None, codes | None, graph | None), or None.
    DenseSegments(nb::list parts, std::vector<uint32_t> firsts, const WalkCosts& costs)
        : Documents(std::move(firsts)), costs_(costs) {
        same_length("parts and segments", parts.size(), firsts_.n_segments());
        for (nb::handle part : parts) {
            segments_.emplace_back();
            if (part.is_none()) continue;
            const auto parts_of = nb::cast<nb::tuple>(part);
            owners_.push_back(nb::borrow(part));
            rows_.emplace_back(new Rows(parts_of[0], parts_of[1], "rows"));
            const size_t number = segments_.size() - 1;
            same_length("rows and documents", rows_.back()->matrix.n_rows, firsts_[number + 1] - firsts_[number]);
            sketches_.emplace_back(new SketchesOf(parts_of[2], parts_of[3], rows_.back()->matrix));
            segments_.back() = {true, rows_.back()->matrix, sketches_.back()->sketches, nullptr};
            if (parts_of[4].is_none()) continue;
            segments_.back().graph = &nb::cast<const KeptGraph&>(parts_of[4]).graph();
            const GraphShape& shape = segments_.back().graph->shape();
            same_length("the graph's rows and rows", shape.n_rows, rows_.back()->matrix.n_rows);
            same_length("the graph's columns and columns", shape.width, rows_.back()->matrix.width);
            has_graphs_ = true;
        }
    }

    bool has_graphs() const { return has_graphs_; }

    // Returns each query's best documents; the GIL need not be held.
    std::vector<std::vector<Hit>> top(const float* queries, size_t n_queries, size_t dim, size_t k, size_t n_threads,
                                      const std::vector<Bitmap>& allowed) const {
        if (has_graphs_) return graphs_top_k(firsts_, segments_, costs_, queries, n_queries, dim, k, n_threads, allowed);
        return segments_top_k(firsts_, segments_, queries, n_queries, dim, k, n_threads, allowed);
    }

    // The query must not be wider than the rows.
    std::unique_ptr<Scorer> scorer(Span<float> query) const {
        return std::make_unique<DenseScorer>(firsts_, segments_, query);
    }

    void check_dim(size_t dim) const {
        for (const auto& rows : rows_) rows->check_dim(dim);
    }

private:
    std::vector<nb::object> owners_;
    std::vector<std::unique_ptr<Rows>> rows_;
    std::vector<std::unique_ptr<SketchesOf>> sketches_;
    std::vector<DenseSegment> segments_;
    WalkCosts costs_;
    bool has_graphs_ = false;
};

class SparseSegments : public Documents {
public:
    SparseSegments(const SparseSegments&) = delete;
    SparseSegments& operator=(const SparseSegments&) = delete;
    SparseSegments(nb::list parts, std::vector<uint32_t> firsts, double k1, double b)
        : Documents(std::move(firsts)), saturation_{k1, b, 1.0} {
        same_length("parts and segments", parts.size(), firsts_.n_segments());
        for (nb::handle part : parts) {
            segments_.emplace_back();
            if (!part.is_none()) segments_.back() = segment(nb::cast<nb::tuple>(part), segments_.size() - 1);
        }
    }

    std::unique_ptr<Scorer> scorer(const SegmentedQuery& query, double mean) const {
        Saturation saturation = saturation_;
        saturation.mean = mean;
        return std::make_unique<SparseScorer>(firsts_, segments_, query, saturation);
    }

    // Begins a search of one query's best documents in at most n_steps steps.
    std::unique_ptr<SegmentsSearch> begin(const SegmentedQuery& query, double mean, size_t k,
                                          const std::vector<Bitmap>& allowed, size_t n_steps) const {
        Saturation saturation = saturation_;
        saturation.mean = mean;
        return std::make_unique<SegmentsSearch>(firsts_, segments_, query, saturation, k, allowed, nullptr, n_steps);
    }

    // Returns one query's best documents; the GIL need not be held.
    std::vector<Hit> top(const SegmentedQuery& query, double mean, size_t k, const std::vector<Bitmap>& allowed,
                         Watched* watched, size_t n_threads) const {
        Saturation saturation = saturation_;
        saturation.mean = mean;
        return segments_top_k(firsts_, segments_, query, saturation, k, allowed, watched, n_threads);
    }

private:
    // The inverted file: term_ids, term_indptr, run_blocks, run_indptr, offsets, weights, and vocab_size.
    void invert(const nb::tuple& part, size_t n_docs, SparseSegment& out) {
        const Span<uint32_t> term_ids = kept_.keep(part[0], "term_ids", 1).span<uint32_t>();
        const Span<int64_t> term_indptr = kept_.keep(part[1], "term_indptr", 1).span<int64_t>();
        const Span<uint32_t> run_blocks = kept_.keep(part[2], "run_blocks", 1).span<uint32_t>();
        const Span<int64_t> run_indptr = kept_.keep(part[3], "run_indptr", 1).span<int64_t>();
        const Span<uint16_t> offsets = kept_.keep(part[4], "offsets", 1).span<uint16_t>();
        const Array& weights = kept_.keep(part[5], "weights", 1);
        const auto vocab_size = nb::cast<size_t>(part[6]);
        same_length("term_ids + 1 and term_indptr", term_ids.size + 1, term_indptr.size);
        same_length("run_blocks + 1 and run_indptr", run_blocks.size + 1, run_indptr.size);
        same_length("offsets and weights", offsets.size, weights.size());
        out.byte_postings = weights.is<uint8_t>();
        if (out.byte_postings) {
            out.narrow_postings = {vocab_size, n_docs,     term_ids, term_indptr,
                                   run_blocks, run_indptr, offsets,  weights.span<uint8_t>()};
        } else {
            out.wide_postings = {vocab_size, n_docs,     term_ids, term_indptr,
                                 run_blocks, run_indptr, offsets,  weights.span<float>()};
        }
    }

    SparseSegment segment(const nb::tuple& part, size_t number) {
        SparseSegment out;
        out.there = true;
        const Span<int64_t> indptr = kept_.keep(part[0], "indptr", 1).span<int64_t>();
        const Span<uint32_t> term_ids = kept_.keep(part[1], "term_ids", 1).span<uint32_t>();
        const Array& weights = kept_.keep(part[2], "weights", 1);
        const size_t n_docs = firsts_[number + 1] - firsts_[number];
        same_length("indptr and documents + 1", indptr.size, n_docs + 1);
        same_length("term_ids and weights", term_ids.size, weights.size());
        out.bytes = weights.is<uint8_t>();
        if (out.bytes) out.narrow = {indptr, term_ids, weights.span<uint8_t>()};
        else out.wide = {indptr, term_ids, weights.span<float>()};
        if (!part[3].is_none()) {
            out.lengths = kept_.keep(part[3], "lengths", 1).span<uint32_t>();
            same_length("lengths and documents", out.lengths.size, n_docs);
            out.mean = nb::cast<double>(part[5]);
        }
        invert(nb::cast<nb::tuple>(part[4]), n_docs, out);
        out.binary = out.byte_postings && nb::cast<bool>(part[6]);
        return out;
    }

    Saturation saturation_;
    Kept kept_;
    std::vector<SparseSegment> segments_;
};

class DocumentIds {
public:
    DocumentIds(const DocumentIds&) = delete;
    DocumentIds& operator=(const DocumentIds&) = delete;
    // Parts: (text, indptr).
    DocumentIds(nb::list parts, std::vector<uint32_t> firsts) : firsts_(std::move(firsts)) {
        same_length("parts and segments", parts.size(), firsts_.n_segments());
        for (nb::handle part : parts) {
            const auto arrays = nb::cast<nb::tuple>(part);
            ids_.push_back({kept_.keep(arrays[0], "text", 1).span<uint8_t>(),
                            kept_.keep(arrays[1], "indptr", 1).span<int64_t>()});
            const size_t number = ids_.size() - 1;
            same_length("indptr and documents + 1", ids_.back().indptr.size, firsts_[number + 1] - firsts_[number] + 1);
        }
    }

    const FirstOrds& firsts() const { return firsts_; }
    const std::vector<SegmentIds>& ids() const { return ids_; }

    // The ids of documents; one that a damaged place would put outside the text is empty, as in order_of_ids, and one
    // that is no UTF-8 is damage.
    nb::list texts(Span<uint32_t> doc_ords) const {
        nb::list out;
        for (const Span<uint8_t>& id : texts_of(firsts_, ids_, doc_ords)) {
            const auto* text = reinterpret_cast<const char*>(id.data);
            nb::object made = nb::steal(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(id.size), nullptr));
            if (!made.is_valid()) {
                PyErr_Clear();
                throw DamagedArrays("a stored string is no UTF-8");
            }
            out.append(made);
        }
        return out;
    }

    nb::object order(nb::handle doc_ords, nb::handle scores) const {
        const Array docs(doc_ords, "doc_ords", 1), values(scores, "scores", 1);
        same_length("doc_ords and scores", docs.size(), values.size());
        return to_numpy(values.is<float>() ? of(docs, values.span<float>()) : of(docs, values.span<double>()));
    }

private:
    template <typename Score>
    std::vector<int64_t> of(const Array& docs, Span<Score> scores) const {
        const Span<uint32_t> ords = docs.span<uint32_t>();
        nb::gil_scoped_release released;
        return order_of_ids(firsts_, ids_, ords, scores);
    }

    FirstOrds firsts_;
    Kept kept_;
    std::vector<SegmentIds> ids_;
};

// A DenseSegments or a SparseSegments.
inline const Documents& documents_of(nb::handle branch) {
    if (nb::isinstance<DenseSegments>(branch)) return nb::cast<const DenseSegments&>(branch);
    return nb::cast<const SparseSegments&>(branch);
}

// A batch of queries for one branch's documents.
class DocumentQueries : public BranchQueries {
public:
    virtual size_t size() const = 0;
    virtual const Documents& documents() const = 0;

    // The documents that may be found, one bitmap per segment; null before it is set, and then `top` must not be called.
    const std::vector<Bitmap>* allowed = nullptr;
};

class DenseQueries : public DocumentQueries {
public:
    DenseQueries(const DenseSegments& rows, Span<float> vectors, size_t n_queries, size_t dim)
        : rows_(rows), vectors_(vectors), n_(n_queries), dim_(dim), lists_(n_queries) {
        rows_.check_dim(dim);
    }

    size_t size() const override { return n_; }
    const Documents& documents() const override { return rows_; }

    // All queries share one reading of the rows. A query of zeros has no direction, and finds nothing.
    void prepare(size_t k, size_t n_threads) override {
        std::vector<size_t> directed;
        for (size_t q = 0; q < n_; ++q) {
            const float* vector = vectors_.data + q * dim_;
            if (std::any_of(vector, vector + dim_, [](float value) { return value != 0.0f; })) directed.push_back(q);
        }
        if (directed.size() == n_) {
            lists_ = rows_.top(vectors_.data, n_, dim_, k, n_threads, *allowed);
            return;
        }
        std::vector<float> some;
        for (const size_t q : directed) {
            some.insert(some.end(), vectors_.data + q * dim_, vectors_.data + (q + 1) * dim_);
        }
        auto lists = rows_.top(some.data(), directed.size(), dim_, k, n_threads, *allowed);
        for (size_t i = 0; i < directed.size(); ++i) lists_[directed[i]] = std::move(lists[i]);
    }

    std::vector<Hit> top(size_t query, size_t, Watched*) override { return std::move(lists_[query]); }

    // A graph takes one step. A scan of all rows is prepared, because its threads share the reading.
    size_t begin(size_t k, size_t) override {
        depth_ = k;
        return rows_.has_graphs() && rows_.are_many() ? 1 : 0;
    }

    void step(size_t) override { prepare(depth_, 1); }

    std::unique_ptr<Scorer> scorer(size_t query) const override {
        return rows_.scorer({vectors_.data + query * dim_, dim_});
    }

private:
    const DenseSegments& rows_;
    Span<float> vectors_;
    size_t n_, dim_, depth_ = 0;
    std::vector<std::vector<Hit>> lists_;
};

class TermQueries : public DocumentQueries {
public:
    // terms: of all queries; query i has terms indptr[i] to indptr[i + 1]. unknown: each query's weight of terms that no
    // document has; or empty.
    TermQueries(const SparseSegments& rows, Span<int64_t> indptr, const SegmentedQuery& terms, double mean,
                Span<double> unknown = {})
        : rows_(rows), indptr_(indptr), terms_(terms), mean_(mean), unknown_(unknown) {}

    size_t size() const override { return indptr_.size - 1; }
    const Documents& documents() const override { return rows_; }

    // Divides the threads among the queries; with more queries than threads, each query has one.
    void prepare(size_t, size_t n_threads) override {
        threads_each_ = std::max(size_t{1}, n_threads / std::max(size_t{1}, size()));
    }

    std::vector<Hit> top(size_t query, size_t k, Watched* watched) override {
        if (search_ != nullptr) return search_->hits();
        return rows_.top(terms(query), mean_, k, *allowed, watched, threads_each_);
    }

    size_t begin(size_t k, size_t n_steps) override {
        if (!rows_.are_many()) return 0;
        search_ = rows_.begin(terms(0), mean_, k, *allowed, n_steps);
        return search_->n_steps();
    }

    void step(size_t number) override { search_->step(number); }

    std::unique_ptr<Scorer> scorer(size_t query) const override { return rows_.scorer(terms(query), mean_); }

    double reach(size_t query) const override {
        double total = unknown_.size == 0 ? 0.0 : unknown_[query];
        const Span<float> weights = terms(query).weights;
        for (const float weight : weights) total += static_cast<double>(weight);
        return total;
    }

    bool lists_by_score() const override { return true; }

    bool allows(uint32_t doc_ord) const override {
        const size_t segment = rows_.firsts().segment_of(doc_ord);
        return (*allowed)[segment](doc_ord - rows_.firsts()[segment]);
    }

private:
    SegmentedQuery terms(size_t query) const {
        const size_t begin = static_cast<size_t>(indptr_[query]), n = static_cast<size_t>(indptr_[query + 1]) - begin;
        SegmentedQuery out = terms_;
        out.term_ids = {terms_.term_ids.data + begin, n};
        out.weights = {terms_.weights.data + begin, n};
        return out;
    }

    const SparseSegments& rows_;
    Span<int64_t> indptr_;
    SegmentedQuery terms_;
    double mean_;
    Span<double> unknown_;
    size_t threads_each_ = 1;
    std::unique_ptr<SegmentsSearch> search_;  // of the only query, if it was begun
};

// A batch of queries from Python, and the arrays that it borrows: (DenseSegments, (n, dim) vectors), or (SparseSegments,
// indptr, term_ids, weights, places | None, mean, unknown | None).
class GivenQueries {
public:
    explicit GivenQueries(const nb::tuple& given) {
        if (given.size() == 2) {
            const Array& vectors = keep(given[1], "queries", 2);
            queries = std::make_unique<DenseQueries>(nb::cast<const DenseSegments&>(given[0]), vectors.span<float>(),
                                                     vectors.size(0), vectors.size(1));
            return;
        }
        if (given.size() != 7) throw InvalidInput("a branch's queries must have 2 or 7 parts");
        const auto& rows = nb::cast<const SparseSegments&>(given[0]);
        const Span<int64_t> indptr = keep(given[1], "query_indptr", 1).span<int64_t>();
        SegmentedQuery terms{keep(given[2], "query_term_ids", 1).span<uint32_t>(),
                             keep(given[3], "query_weights", 1).span<float>()};
        same_length("query_term_ids and query_weights", terms.term_ids.size, terms.weights.size);
        check_indptr(indptr, terms.term_ids.size, "query_indptr");
        if (!given[4].is_none()) {
            const Array& places = keep(given[4], "places", 2);
            same_length("places and segments", places.size(0), rows.n_segments());
            terms.places = places.span<int64_t>();
            terms.width = places.size(1);
        }
        Span<double> unknown;
        if (!given[6].is_none()) {
            unknown = keep(given[6], "unknown", 1).span<double>();
            same_length("queries + 1 and query_indptr", unknown.size + 1, indptr.size);
        }
        queries = std::make_unique<TermQueries>(rows, indptr, terms, nb::cast<double>(given[5]), unknown);
    }

    std::unique_ptr<DocumentQueries> queries;

private:
    const Array& keep(nb::handle object, const char* name, int ndim) {
        arrays_.emplace_back(new Array(object, name, ndim));
        return *arrays_.back();
    }

    std::vector<std::unique_ptr<Array>> arrays_;
};

// Asks a Python function of a query's number and doc_ords for their scores.
class CallbackScorer : public Scorer {
public:
    CallbackScorer(nb::handle function, size_t query) : function_(function), query_(query) {}

    void score(Span<uint32_t> doc_ords, float* scores) const override {
        if (doc_ords.size == 0) return;
        const nb::gil_scoped_acquire acquired;
        const nb::object returned =
            function_(query_, to_numpy(std::vector<uint32_t>(doc_ords.begin(), doc_ords.end())));
        const Array values(returned, "scores", 1);
        same_length("doc_ords and scores", doc_ords.size, values.size());
        std::copy_n(values.span<float>().data, doc_ords.size, scores);
    }

private:
    nb::handle function_;
    size_t query_;
};

// Lists that were made outside the kernel: (indptr, doc_ords, scores, function | None). Without a function the queries
// score documents outside the lists.
class ListedQueries : public BranchQueries {
public:
    ListedQueries(const nb::tuple& given, BranchQueries* queries)
        : indptr_(given[0], "indptr", 1), doc_ords_(given[1], "doc_ords", 1), scores_(given[2], "scores", 1),
          function_(nb::borrow(given[3])), queries_(queries) {
        same_length("doc_ords and scores", doc_ords_.size(), scores_.size());
        check_indptr(indptr_.span<int64_t>(), doc_ords_.size(), "indptr");
        doc_ords_.span<uint32_t>(), scores_.span<float>();
        if (function_.is_none() && queries_ == nullptr) throw InvalidInput("lists need queries or a function for scores");
    }

    size_t size() const { return indptr_.size() - 1; }

    std::vector<Hit> top(size_t query, size_t, Watched*) override {
        const Span<int64_t> indptr = indptr_.span<int64_t>();
        const Span<uint32_t> doc_ords = doc_ords_.span<uint32_t>();
        const Span<float> scores = scores_.span<float>();
        std::vector<Hit> hits;
        for (auto i = static_cast<size_t>(indptr[query]); i < static_cast<size_t>(indptr[query + 1]); ++i) {
            hits.push_back({doc_ords[i], scores[i]});
        }
        return hits;
    }

    double reach(size_t query) const override { return queries_ == nullptr ? 1.0 : queries_->reach(query); }

    std::unique_ptr<Scorer> scorer(size_t query) const override {
        if (function_.is_none()) return queries_->scorer(query);
        return std::make_unique<CallbackScorer>(function_, query);
    }

private:
    Array indptr_, doc_ords_, scores_;
    nb::object function_;
    BranchQueries* queries_;
};

inline Scale scale_of(const std::string& name) {
    if (name == "none") return Scale::none;
    if (name == "max") return Scale::max;
    if (name == "min-max") return Scale::min_max;
    if (name == "z-score") return Scale::z_score;
    if (name == "dbsf") return Scale::dbsf;
    if (name == "rrf") return Scale::reciprocal;
    if (name == "absolute") return Scale::absolute;
    throw InvalidInput("there is no scale '" + name + "'");
}

template <typename T, typename Part>
nb::object joined(std::vector<FusedTop>& rankings, const Part& part) {
    if (rankings.size() == 1) return to_numpy(std::move(part(rankings[0])));
    std::vector<T> all;
    for (FusedTop& ranking : rankings) {
        const std::vector<T>& values = part(ranking);
        all.insert(all.end(), values.begin(), values.end());
    }
    return to_numpy(std::move(all));
}

// All queries' rankings one after the other: indptr, doc_ords, sums, and a list of each branch's column, empty without
// columns.
inline nb::tuple to_numpy(std::vector<FusedTop> rankings, size_t n_branches, bool with_columns) {
    std::vector<int64_t> indptr{0};
    for (const FusedTop& ranking : rankings) indptr.push_back(indptr.back() + static_cast<int64_t>(ranking.doc_ords.size()));
    nb::list columns;
    for (size_t b = 0; with_columns && b < n_branches; ++b) {
        columns.append(nb::make_tuple(
            joined<float>(rankings, [b](FusedTop& one) -> auto& { return one.columns[b].scores; }),
            joined<double>(rankings, [b](FusedTop& one) -> auto& { return one.columns[b].normalized; }),
            joined<int64_t>(rankings, [b](FusedTop& one) -> auto& { return one.columns[b].ranks; })));
    }
    return nb::make_tuple(to_numpy(std::move(indptr)),
                          joined<uint32_t>(rankings, [](FusedTop& one) -> auto& { return one.doc_ords; }),
                          joined<double>(rankings, [](FusedTop& one) -> auto& { return one.scores; }), columns);
}

}  // namespace lightir
