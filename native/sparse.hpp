#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "arrays.hpp"
#include "top_k.hpp"

namespace lightir {

constexpr size_t block_size = 65536;  // documents whose offsets fit 16 bits and whose accumulators fit a core's L2

// Sparse document vectors by row; term ids ascend within a row. W is uint8_t or float.
template <typename W>
struct SparseRows {
    Span<int64_t> indptr;  // (n_docs + 1,)
    Span<uint32_t> term_ids;
    Span<W> weights;
};

// Sparse document vectors by term. A run is the postings of one term in one block of 65,536 documents.
template <typename W>
struct PostingsView {
    size_t vocab_size = 0;
    size_t n_docs = 0;
    Span<uint32_t> term_ids;    // (n_terms,) the terms that occur, ascending
    Span<int64_t> term_indptr;  // (n_terms + 1,) a term's runs
    Span<uint32_t> run_blocks;  // (n_runs,) ascending within a term
    Span<int64_t> run_indptr;   // (n_runs + 1,) a run's postings
    Span<uint16_t> offsets;     // (n_postings,) doc_ord - 65,536 * block, ascending within a run
    Span<W> weights;            // (n_postings,)
};

template <typename W>
struct OwnedPostings {
    std::vector<uint32_t> term_ids;
    std::vector<int64_t> term_indptr;
    std::vector<uint32_t> run_blocks;
    std::vector<int64_t> run_indptr;
    std::vector<uint16_t> offsets;
    std::vector<W> weights;
};

template <typename W>
OwnedPostings<W> invert(const SparseRows<W>& rows, size_t vocab_size, size_t n_docs);

struct SparseQuery {
    Span<uint32_t> term_ids;
    Span<float> weights;
};

// Returns the k best documents with a score above 0 and at least the floor. A score is the float sum of query weight *
// impact in ascending order of term ids.
template <typename W>
std::vector<Hit> sparse_top_k(const PostingsView<W>& postings, const SparseQuery& query, size_t k, Bitmap allowed,
                              float floor = 0.0f);

// One segment of a collection: its postings (byte or float) and the query's terms in it.
struct SparsePart {
    const PostingsView<uint8_t>* narrow = nullptr;
    const PostingsView<float>* wide = nullptr;
    SparseQuery query;
    Bitmap allowed;
    uint32_t first_ord = 0;  // doc_ord of the segment's first document; ascending over the segments
};

// Documents whose scores are wanted even if they are not among the best: ascending doc_ords and their scores.
struct Watched {
    std::vector<uint32_t> doc_ords;
    std::vector<float> scores;
};

// A search of the k best documents of all segments, in steps that may run at the same time.
class SparseSearch {
public:
    SparseSearch(const SparseSearch&) = delete;
    SparseSearch& operator=(const SparseSearch&) = delete;
    // n_docs includes the documents of omitted segments. Watched documents get their scores from the accumulators, which costs
    // less than a lookup. n_steps: maximum number of steps; few postings take fewer.
    SparseSearch(std::vector<SparsePart> parts, size_t n_docs, size_t k, Watched* watched, size_t n_steps);
    ~SparseSearch();

    size_t n_steps() const;
    // Each step is called once.
    void step(size_t number);
    // Returns the k best documents, after all steps: by descending score, then ascending doc_ord, plus those of each segment's
    // k best that tie with the last, and with several steps perhaps more that do.
    std::vector<Hit> hits();

private:
    struct State;
    std::unique_ptr<State> state_;
};

// Makes all steps of a SparseSearch.
std::vector<Hit> sparse_top_k(const std::vector<SparsePart>& parts, size_t n_docs, size_t k, Watched* watched = nullptr,
                              size_t n_threads = 1);

// The result of sums of rounded weights. A document with the rounded sum s has a sum of weight * impact between
// unit * (s - over) and unit * (s + under), apart from float rounding.
struct CoarseTop {
    std::vector<Hit> hits;  // with s as the score
    double unit = 1, over = 0, under = 0;
    float left_out = 0;  // upper bound of s of all documents that are not among the hits
};

constexpr double float_rounding = 1e-4;  // exceeds the relative error of float sums of a few thousand terms
constexpr size_t most_narrow_terms = 4096;  // maximum number of terms whose weights 16-bit sums can distinguish

// Returns a superset of the documents that can be among the k with the largest sums of weight * impact and can reach the
// floor. binary: all impacts are 1 and are not read.
CoarseTop coarse_top_k(const PostingsView<uint8_t>& postings, const SparseQuery& query, size_t k, Bitmap allowed,
                       double floor, bool binary);

// Returns the number of postings of the query's terms.
template <typename W>
size_t n_postings(const PostingsView<W>& postings, const SparseQuery& query);

// Whether 16 bits hold every sum of the query exactly, so that coarse sums have no advantage.
bool has_small_counts(const SparseQuery& query);

}  // namespace lightir
