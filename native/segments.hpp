// A branch's documents over the segments of a view: exact search and scores of given documents.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "arrays.hpp"
#include "dense.hpp"
#include "graph.hpp"
#include "sparse.hpp"

namespace lightir {

// Computes the scores of documents for one query.
class Scorer {
public:
    virtual ~Scorer() = default;
    virtual void score(Span<uint32_t> doc_ords, float* scores) const = 0;
};

// The first doc_ord of each segment, and the end of the last.
class FirstOrds {
public:
    explicit FirstOrds(std::vector<uint32_t> firsts);

    size_t n_segments() const { return firsts_.size() - 1; }
    uint32_t operator[](size_t segment) const { return firsts_[segment]; }

    // Returns the segment of a document; InvalidInput if there is none.
    size_t segment_of(uint32_t doc_ord) const;

    // Calls use(segment, places, at) for each segment with some of the documents. places: row numbers in the segment. at:
    // their positions in doc_ords.
    template <typename Use>
    void each(Span<uint32_t> doc_ords, const Use& use) const;

private:
    std::vector<uint32_t> firsts_;
};

// The documents' ids in one segment, ascending with the doc_ords. Id i is
// text[indptr[i] .. indptr[i + 1]).
struct SegmentIds {
    Span<uint8_t> text;
    Span<int64_t> indptr;
};

// Returns the positions of documents in the total order: descending score, then ascending bytes of the id. The scores
// (float or double) must already descend, so that only ties are reordered.
template <typename Score>
std::vector<int64_t> order_of_ids(const FirstOrds& firsts, const std::vector<SegmentIds>& ids, Span<uint32_t> doc_ords,
                                  Span<Score> scores);

// Returns the bytes of documents' ids.
std::vector<Span<uint8_t>> texts_of(const FirstOrds& firsts, const std::vector<SegmentIds>& ids, Span<uint32_t> doc_ords);

// One segment's dense rows; without a matrix every score is 0.
struct DenseSegment {
    bool there = false;
    Matrix rows;
    Sketches sketches;
    const StoredGraph* graph = nullptr;  // over the rows, or null
};

// How many nodes a walk of a graph keeps at least, and the number of rows that a scan reads in the time that it takes a node.
struct WalkCosts {
    size_t candidates = 128, rows_a_candidate = 200;
};

class DenseScorer : public Scorer {
public:
    DenseScorer(const FirstOrds& firsts, const std::vector<DenseSegment>& segments, Span<float> query)
        : firsts_(firsts), segments_(segments), query_(query) {}
    void score(Span<uint32_t> doc_ords, float* scores) const override;

private:
    const FirstOrds& firsts_;
    const std::vector<DenseSegment>& segments_;
    Span<float> query_;
};

// One segment's sparse rows: impacts, or counts that BM25 saturates by the documents' lengths.
struct SparseSegment {
    bool there = false;
    bool bytes = false;  // weights are uint8, in `narrow`; else float, in `wide`
    SparseRows<uint8_t> narrow;
    SparseRows<float> wide;
    Span<uint32_t> lengths;  // empty if the weights are impacts
    bool byte_postings = false;  // the inverted file is in `narrow_postings`; else in `wide_postings`
    PostingsView<uint8_t> narrow_postings;
    PostingsView<float> wide_postings;
    bool binary = false;  // all byte postings are 1
    double mean = 0;  // mean length for which the postings hold saturations; 0 if they hold impacts
};

// Saturation of counts: tf / (tf + k1 (1 - b + b |d| / mean)).
struct Saturation {
    double k1 = 0, b = 0, mean = 1;
};

// A query's terms. In segment s term i has the id places[s * width + term_ids[i]]; a negative value means that the segment
// does not have the term. Without places the id is term_ids[i] in every segment.
struct SegmentedQuery {
    Span<uint32_t> term_ids;
    Span<float> weights;
    Span<int64_t> places;
    size_t width = 0;
};

class SparseScorer : public Scorer {
public:
    SparseScorer(const FirstOrds& firsts, const std::vector<SparseSegment>& segments, const SegmentedQuery& query,
                 const Saturation& saturation)
        : firsts_(firsts), segments_(segments), query_(query), saturation_(saturation) {}
    // Sums in ascending order of the segment's term ids, as a search does.
    void score(Span<uint32_t> doc_ords, float* scores) const override;

private:
    const FirstOrds& firsts_;
    const std::vector<SparseSegment>& segments_;
    SegmentedQuery query_;
    Saturation saturation_;
};

// Returns the k best hits and those that tie with the last of them, in order. The doc_ords must be distinct.
std::vector<Hit> best_and_ties(std::vector<Hit> hits, size_t k);

// Returns each query's k best documents over all segments, by descending score, then ascending doc_ord, plus those of each
// segment's k best that tie with the last. allowed has one bitmap per segment.
std::vector<std::vector<Hit>> segments_top_k(const FirstOrds& firsts, const std::vector<DenseSegment>& segments,
                                             const float* queries, size_t n_queries, size_t dim, size_t k,
                                             size_t n_threads, const std::vector<Bitmap>& allowed);

// A search of one sparse query's k best documents over all segments, in steps that may run at the same time; there is one step
// unless the stored scores are exact. A score stored for another mean length than saturation.mean bounds the exact score:
// a saturation falls as 1 / mean rises, at most in proportion, so with r = current mean / stored mean the exact score is
// between min(1, r) and max(1, r) times the stored one. Stored scores select candidates, whose exact scores are computed
// from their counts. A segment is searched deeper until no remaining document can be among the best. Watched documents
// get scores only if the stored scores are exact; otherwise `watched` keeps no scores.
class SegmentsSearch {
public:
    SegmentsSearch(const SegmentsSearch&) = delete;
    SegmentsSearch& operator=(const SegmentsSearch&) = delete;
    // Borrows firsts, segments, the query's arrays and watched. allowed has one bitmap per segment. n_steps: maximum number.
    SegmentsSearch(const FirstOrds& firsts, const std::vector<SparseSegment>& segments, const SegmentedQuery& query,
                   const Saturation& saturation, size_t k, const std::vector<Bitmap>& allowed, Watched* watched,
                   size_t n_steps);
    ~SegmentsSearch();

    size_t n_steps() const;
    // Each step is called once.
    void step(size_t number);
    // Returns what segments_top_k of a dense query does, after all steps.
    std::vector<Hit> hits();

private:
    struct State;
    std::unique_ptr<State> state_;
};

// Makes all steps of a SegmentsSearch.
std::vector<Hit> segments_top_k(const FirstOrds& firsts, const std::vector<SparseSegment>& segments,
                                const SegmentedQuery& query, const Saturation& saturation, size_t k,
                                const std::vector<Bitmap>& allowed, Watched* watched = nullptr, size_t n_threads = 1);

}  // namespace lightir
