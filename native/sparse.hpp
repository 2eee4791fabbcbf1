#pragma once

#include <cstdint>
#include <vector>

#include "arrays.hpp"
#include "top_k.hpp"

namespace lightir {

constexpr size_t block_size = 65536;  // documents whose offsets fit 16 bits and whose accumulators fit a core's L2

// Documents' sparse vectors row by row; term ids ascend within a row. W is uint8_t or float.
template <typename W>
struct SparseRows {
    Span<int64_t> indptr;  // (n_docs + 1,)
    Span<uint32_t> term_ids;
    Span<W> weights;
};

// The same, term by term. A run is the postings of one term in one block of 65,536 documents.
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

// The k best documents with a score above 0 and at least the floor: the float sum of query weight * impact in ascending
// order of term ids.
template <typename W>
std::vector<Hit> sparse_top_k(const PostingsView<W>& postings, const SparseQuery& query, size_t k, Bitmap allowed,
                              float floor = 0.0f);

// A segment of a collection: its postings, of bytes or of floats, and the query's terms there.
struct SparsePart {
    const PostingsView<uint8_t>* narrow = nullptr;
    const PostingsView<float>* wide = nullptr;
    SparseQuery query;
    Bitmap allowed;
    uint32_t first_ord = 0;  // of the segment's first document in the collection; ascending
};

// Documents whose scores are asked for whether they are among the best or not: doc_ords, ascending, and a score each.
struct Watched {
    std::vector<uint32_t> doc_ords;
    std::vector<float> scores;
};

// The k best of all segments' documents, n_docs with those of segments that are left out, score down, then doc_ord up; and
// those of each segment's k best that tie with the last of them. Watched documents get the scores of sparse_pair_scores,
// to the bit, while all are summed, which costs less than to look one up.
std::vector<Hit> sparse_top_k(const std::vector<SparsePart>& parts, size_t n_docs, size_t k, Watched* watched = nullptr);

// What sums of rounded weights say: with s for its own, a document's sum of weight * impact lies between
// unit * (s - over) and unit * (s + under), but for what float sums lose.
struct CoarseTop {
    std::vector<Hit> hits;  // with s for a score
    double unit = 1, over = 0, under = 0;
    float left_out = 0;  // no document that is not among the hits has a larger s
};

constexpr double float_rounding = 1e-4;  // more than float sums of a few thousand terms can be off
constexpr size_t most_narrow_terms = 4096;  // whose weights sums of 16 bits still tell apart

// All documents that can be among the k with the largest sums of weight * impact, and can reach the floor; the hits hold
// more. With binary impacts all are 1, and are not read.
CoarseTop coarse_top_k(const PostingsView<uint8_t>& postings, const SparseQuery& query, size_t k, Bitmap allowed,
                       double floor, bool binary);

// How many postings the query's terms have.
size_t n_postings(const PostingsView<uint8_t>& postings, const SparseQuery& query);

// Whether 16 bits hold every sum of the query exactly, so that nothing is gained by coarse ones.
bool has_small_counts(const SparseQuery& query);

// scores[i] = the same sum for document doc_ords[i], to the bit; 0 where nothing matches.
template <typename W>
void sparse_pair_scores(const SparseRows<W>& rows, Span<uint32_t> doc_ords, const SparseQuery& query, float* scores);

}  // namespace lightir
