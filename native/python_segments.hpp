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
#include "fusion.hpp"
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

protected:
    FirstOrds firsts_;
};

class DenseSegments : public Documents {
public:
    DenseSegments(const DenseSegments&) = delete;
    DenseSegments& operator=(const DenseSegments&) = delete;
    DenseSegments(nb::list parts, std::vector<uint32_t> firsts) : Documents(std::move(firsts)) {
        same_length("parts and segments", parts.size(), firsts_.n_segments());
        for (nb::handle part : parts) {
            segments_.emplace_back();
            if (part.is_none()) continue;
            const auto parts_of = nb::cast<nb::tuple>(part);
            owners_.push_back(nb::borrow(part));
            rows_.emplace_back(new Rows(parts_of[0], parts_of[1], "rows"));
            copies_.emplace_back(new CopiesOf(parts_of[2], rows_.back()->matrix));
            segments_.back() = {true, rows_.back()->matrix, copies_.back()->copies};
        }
    }

    nb::tuple top_k(nb::handle queries, size_t k, size_t n_threads, nb::handle allowed) const {
        const Array vectors(queries, "queries", 2);
        const Span<float> values = vectors.span<float>();
        check_dim(vectors.size(1));
        const AllowedOfAll filter(allowed, firsts_);
        std::vector<std::vector<Hit>> hits;
        {
            nb::gil_scoped_release released;
            hits = segments_top_k(firsts_, segments_, values.data, vectors.size(0), vectors.size(1), k, n_threads,
                                  filter.bitmaps);
        }
        return to_numpy(hits);
    }

    // One query's best documents, none for a query of zeros, which has no direction; the GIL need not be held.
    std::vector<Hit> best(Span<float> query, size_t k, size_t n_threads, const std::vector<Bitmap>& allowed) const {
        if (std::all_of(query.begin(), query.end(), [](float value) { return value == 0.0f; })) return {};
        return std::move(segments_top_k(firsts_, segments_, query.data, 1, query.size, k, n_threads, allowed)[0]);
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
    std::vector<std::unique_ptr<CopiesOf>> copies_;
    std::vector<DenseSegment> segments_;
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

    nb::tuple top_k(nb::handle query_indptr, nb::handle term_ids, nb::handle weights, nb::handle places, double mean,
                    size_t k, size_t n_threads, nb::handle allowed) const {
        const Array pointers(query_indptr, "query_indptr", 1), terms(term_ids, "query_term_ids", 1);
        const Array values(weights, "query_weights", 1);
        const Span<int64_t> indptr = pointers.span<int64_t>();
        SegmentedQuery all{terms.span<uint32_t>(), values.span<float>()};
        same_length("query_term_ids and query_weights", all.term_ids.size, all.weights.size);
        check_indptr(indptr, all.term_ids.size, "query_indptr");
        std::unique_ptr<Array> kept;
        if (!places.is_none()) {
            kept = std::make_unique<Array>(places, "places", 2);
            same_length("places and segments", kept->size(0), n_segments());
            all.places = kept->span<int64_t>();
            all.width = kept->size(1);
        }
        const AllowedOfAll filter(allowed, firsts_);
        Saturation saturation = saturation_;
        saturation.mean = mean;
        std::vector<std::vector<Hit>> hits(indptr.size - 1);
        {
            nb::gil_scoped_release released;
            parallel_for(hits.size(), n_threads, [&](size_t q) {
                const size_t begin = static_cast<size_t>(indptr[q]), size = static_cast<size_t>(indptr[q + 1]) - begin;
                SegmentedQuery query = all;
                query.term_ids = {all.term_ids.data + begin, size};
                query.weights = {all.weights.data + begin, size};
                hits[q] = segments_top_k(firsts_, segments_, query, saturation, k, filter.bitmaps);
            });
        }
        return to_numpy(hits);
    }

    // One query's best documents; the GIL need not be held.
    std::vector<Hit> best(const SegmentedQuery& query, double mean, size_t k, const std::vector<Bitmap>& allowed,
                          Watched* watched) const {
        Saturation saturation = saturation_;
        saturation.mean = mean;
        return segments_top_k(firsts_, segments_, query, saturation, k, allowed, watched);
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

// A branch's documents with a query for them, and the arrays that it borrows.
class BranchQuery {
public:
    // The part of a text's vectors that is for these documents; borrows them.
    BranchQuery(nb::handle branch, const QueryOfText& query) {
        if (nb::isinstance<DenseSegments>(branch)) {
            dense_ = &nb::cast<const DenseSegments&>(branch);
            vector_ = {query.dense.data(), query.dense.size()};
            dense_->check_dim(vector_.size);
            return;
        }
        sparse_ = &nb::cast<const SparseSegments&>(branch);
        const SparseQueries& counts = query.sparse;
        terms_ = {{counts.term_ids.data(), counts.term_ids.size()}, {counts.weights.data(), counts.weights.size()}};
    }

    // (DenseSegments, query) or (SparseSegments, term_ids, weights, places | None, mean).
    explicit BranchQuery(const nb::tuple& given) {
        if (given.size() == 2) {
            dense_ = &nb::cast<const DenseSegments&>(given[0]);
            const Array& query = keep(given[1], "query", 1);
            vector_ = query.span<float>();
            dense_->check_dim(vector_.size);
            return;
        }
        if (given.size() != 5) throw InvalidInput("a branch's query must have 2 or 5 parts");
        sparse_ = &nb::cast<const SparseSegments&>(given[0]);
        terms_ = {keep(given[1], "term_ids", 1).span<uint32_t>(), keep(given[2], "weights", 1).span<float>()};
        same_length("query_term_ids and query_weights", terms_.term_ids.size, terms_.weights.size);
        if (!given[3].is_none()) {
            const Array& places = keep(given[3], "places", 2);
            same_length("places and segments", places.size(0), sparse_->n_segments());
            terms_.places = places.span<int64_t>();
            terms_.width = places.size(1);
        }
        mean_ = nb::cast<double>(given[4]);
    }

    std::unique_ptr<Scorer> scorer() const {
        return dense_ != nullptr ? dense_->scorer(vector_) : sparse_->scorer(terms_, mean_);
    }

    // The k best; see QueriedBranch. The GIL need not be held.
    std::vector<Hit> top(size_t k, size_t n_threads, const std::vector<Bitmap>& allowed, Watched* watched) const {
        return dense_ != nullptr ? dense_->best(vector_, k, n_threads, allowed)
                                 : sparse_->best(terms_, mean_, k, allowed, watched);
    }

    const FirstOrds& firsts() const { return dense_ != nullptr ? dense_->firsts() : sparse_->firsts(); }

private:
    const Array& keep(nb::handle object, const char* name, int ndim) {
        arrays_.emplace_back(new Array(object, name, ndim));
        return *arrays_.back();
    }

    const DenseSegments* dense_ = nullptr;  // or
    const SparseSegments* sparse_ = nullptr;
    Span<float> vector_;
    SegmentedQuery terms_;
    double mean_ = 1.0;
    std::vector<std::unique_ptr<Array>> arrays_;
};

inline Scale scale_of(const std::string& name) {
    if (name == "none") return Scale::none;
    if (name == "max") return Scale::max;
    if (name == "min-max") return Scale::min_max;
    if (name == "z-score") return Scale::z_score;
    if (name == "dbsf") return Scale::dbsf;
    if (name == "rrf") return Scale::reciprocal;
    throw InvalidInput("there is no scale '" + name + "'");
}

// doc_ords, sums, and a list of each branch's column, empty where none were made.
inline nb::tuple to_numpy(FusedTop out) {
    nb::list columns;
    for (FusedColumn& column : out.columns) {
        columns.append(nb::make_tuple(to_numpy(std::move(column.scores)), to_numpy(std::move(column.normalized)),
                                      to_numpy(std::move(column.ranks))));
    }
    return nb::make_tuple(to_numpy(std::move(out.doc_ords)), to_numpy(std::move(out.scores)), columns);
}

}  // namespace lightir
