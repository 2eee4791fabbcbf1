// One ranking out of several branches' lists.
#pragma once

#include <cstdint>
#include <vector>

#include "arrays.hpp"
#include "segments.hpp"

namespace lightir {

enum class Scale { none, max, min_max, z_score, dbsf, reciprocal };

// One branch's best documents, score down; what it gives others, no more than the last of these where the list is
// complete; its part in the sum; and scores of documents of other lists that are known already.
struct FusedBranch {
    Span<uint32_t> doc_ords;
    Span<float> scores;
    const Scorer* scorer = nullptr;
    double weight = 1.0;
    bool complete = false;
    const Watched* known = nullptr;
};

struct FusedColumn {
    std::vector<float> scores;
    std::vector<double> normalized;
    std::vector<int64_t> ranks;  // from 1; 0 outside the branch's list
};

struct FusedTop {
    std::vector<uint32_t> doc_ords;
    std::vector<double> scores;
    std::vector<FusedColumn> columns;
};

// Whether documents outside a branch's list may count, so that their scores have to be known.
inline bool counts_outside(Scale scale) { return scale != Scale::min_max && scale != Scale::reciprocal; }

// How lists are joined.
struct FusionOptions {
    Scale scale = Scale::max;
    double rrf_k = 60.0;
    size_t k = 10;
    bool ties = false;     // return also the documents that tie with the k-th
    bool columns = true;   // return the branches' scores of the documents; without them fewer scores are computed
    Span<uint32_t> also;   // documents to rank whether a branch lists them or not
};

// Returns the k best documents of all lists by the weighted sum of the branches' normalized scores: sum down, then doc_ord
// up. A document outside a branch's list gets its scorer's score, which is computed where it can matter.
FusedTop fuse(const std::vector<FusedBranch>& branches, const FusionOptions& options);

// Returns a branch's normalized scores of documents, given the scores in its list, and the documents' ranks in it, 0 outside.
std::vector<double> normalized(Span<float> scores, Span<float> listed, Span<int64_t> ranks, Scale scale, double rrf_k);

}  // namespace lightir
