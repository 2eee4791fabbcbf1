// A branch's documents over the segments of a view: scores of given ones, wherever they are.
#pragma once

#include <cstdint>
#include <vector>

#include "arrays.hpp"
#include "dense.hpp"
#include "sparse.hpp"

namespace lightir {

// Gives a query's scores of documents.
class Scorer {
public:
    virtual ~Scorer() = default;
    virtual void score(Span<uint32_t> doc_ords, float* scores) const = 0;
};

// Where each segment's doc_ords begin, and one past the last.
class FirstOrds {
public:
    explicit FirstOrds(std::vector<uint32_t> firsts);

    size_t n_segments() const { return firsts_.size() - 1; }
    uint32_t operator[](size_t segment) const { return firsts_[segment]; }

    // The segment that holds a document; InvalidInput if none does.
    size_t segment_of(uint32_t doc_ord) const;

    // Calls use(segment, places, at) for each segment that has some of the documents: places inside it, and where they
    // stand in doc_ords.
    template <typename Use>
    void each(Span<uint32_t> doc_ords, const Use& use) const;

private:
    std::vector<uint32_t> firsts_;
};

// The documents' ids over all segments; inside one they ascend with the doc_ords. Id i of a segment is
// text[indptr[i] .. indptr[i + 1]).
struct SegmentIds {
    Span<uint8_t> text;
    Span<int64_t> indptr;
};

// The places of documents in the total order: score down, then id up, byte by byte. The scores, float or double, fall
// already, so that only documents that tie change places.
template <typename Score>
std::vector<int64_t> order_of_ids(const FirstOrds& firsts, const std::vector<SegmentIds>& ids, Span<uint32_t> doc_ords,
                                  Span<Score> scores);

// The bytes of documents' ids.
std::vector<Span<uint8_t>> texts_of(const FirstOrds& firsts, const std::vector<SegmentIds>& ids, Span<uint32_t> doc_ords);

// One segment's dense rows; without a matrix it has none, and every score is 0.
struct DenseSegment {
    bool there = false;
    Matrix rows;
    Copies copies;
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

// One segment's sparse rows: impacts, or counts that make saturations of BM25 with the documents' lengths.
struct SparseSegment {
    bool there = false;
    bool bytes = false;  // weights are uint8, in `narrow`; else float, in `wide`
    SparseRows<uint8_t> narrow;
    SparseRows<float> wide;
    Span<uint32_t> lengths;  // empty: weights are what they are
    bool byte_postings = false;  // the inverted file is in `narrow_postings`; else in `wide_postings`
    PostingsView<uint8_t> narrow_postings;
    PostingsView<float> wide_postings;
    bool binary = false;  // byte postings that are all 1
    double mean = 0;  // the postings hold saturations for this mean length; 0: weights that hang on no mean
};

// How counts become weights: tf / (tf + k1 (1 - b + b |d| / mean)).
struct Saturation {
    double k1 = 0, b = 0, mean = 1;
};

// A query's terms; in segment s term i is places[s * width + term_ids[i]], or not there where that is negative. Without
// places it is term_ids[i] in every segment.
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
    // The sum in ascending order of the segment's term ids, as sparse_pair_scores has it.
    void score(Span<uint32_t> doc_ords, float* scores) const override;

private:
    const FirstOrds& firsts_;
    const std::vector<SparseSegment>& segments_;
    SegmentedQuery query_;
    Saturation saturation_;
};

// Each query's k best documents over all segments, score down, then doc_ord up, and those of each segment's k best that
// tie with the last of them. allowed has a bitmap a segment.
std::vector<std::vector<Hit>> segments_top_k(const FirstOrds& firsts, const std::vector<DenseSegment>& segments,
                                             const float* queries, size_t n_queries, size_t dim, size_t k,
                                             size_t n_threads, const std::vector<Bitmap>& allowed);

// The same of one sparse query. The stored score of a posting for another mean length than saturation.mean bounds its
// true score: a saturation falls as 1 / mean rises, never faster than in proportion, so for r = mean now / mean then the
// true score lies between min(1, r) and max(1, r) times the stored one. Stored scores pick the candidates, whose true
// scores are computed from their counts, and a segment is asked for more until none that it withholds can be among the
// best. The watched get their scores where stored ones are the true ones; otherwise `watched` is left without scores.
std::vector<Hit> segments_top_k(const FirstOrds& firsts, const std::vector<SparseSegment>& segments,
                                const SegmentedQuery& query, const Saturation& saturation, size_t k,
                                const std::vector<Bitmap>& allowed, Watched* watched = nullptr);

}  // namespace lightir
