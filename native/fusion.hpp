// Fusion of several branches' lists into one ranking.
#pragma once

#include <cstdint>
#include <vector>

#include "arrays.hpp"
#include "segments.hpp"

namespace lightir {

enum class Scale { none, max, min_max, z_score, dbsf, reciprocal, absolute };

// One branch's best documents by descending score. scorer computes the scores of other documents, which are at most the
// last listed score if the list is complete. known holds precomputed scores of documents outside the list, or null.
struct FusedBranch {
    Span<uint32_t> doc_ords;
    Span<float> scores;
    const Scorer* scorer = nullptr;
    double weight = 1.0;
    bool complete = false;
    const Watched* known = nullptr;
    double low = 0.0, high = 1.0;  // the scores that Scale::absolute normalizes to 0 and to 1
};

struct FusedColumn {
    std::vector<float> scores;
    std::vector<double> normalized;
    std::vector<int64_t> ranks;  // from 1; 0 outside the branch's list
};

// Whether a document is pending; nothing is flagged in an empty span.
inline bool is_pending(Span<uint8_t> pending, uint32_t doc_ord) { return doc_ord < pending.size && pending[doc_ord] != 0; }

struct FusedTop {
    std::vector<uint32_t> doc_ords;
    std::vector<double> scores;
    std::vector<FusedColumn> columns;
};

// Whether the score of a document outside a branch's list can matter, so that it must be known.
inline bool counts_outside(Scale scale) { return scale != Scale::min_max && scale != Scale::reciprocal; }

// Options of fuse().
struct FusionOptions {
    Scale scale = Scale::max;
    double rrf_k = 60.0;
    size_t k = 10;
    bool ties = false;     // also return documents that tie with the k-th
    bool columns = true;   // return the branches' scores of the documents; false computes fewer scores
    Span<uint32_t> also;   // documents to rank in addition to the listed ones
    Span<uint8_t> pending; // by doc_ord, whether a document is left out of the result; its listed scores count for the
                           // normalization. Empty if none is.
};

// Returns the k best documents of all lists by the weighted sum of the branches' normalized scores, ordered by descending
// sum, then ascending doc_ord. The scorer of a branch scores documents outside its list if they can be among the best.
FusedTop fuse(const std::vector<FusedBranch>& branches, const FusionOptions& options);

// Returns a branch's normalized scores of documents. listed: scores of the branch's list. ranks: the documents' ranks in it
// from 1, or 0 for a document outside.
std::vector<double> normalized(Span<float> scores, Span<float> listed, Span<int64_t> ranks, Scale scale, double rrf_k);

}  // namespace lightir
