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

// The k best documents of all lists by the weighted sum of what the branches say of them: sum down, then doc_ord up;
// with ties also those that have the k-th one's sum. A document outside a list gets its scorer's score, which is asked for
// where it can matter. Without columns none are made, which takes fewer of these scores.
FusedTop fuse(const std::vector<FusedBranch>& branches, Scale scale, double rrf_k, size_t k, bool ties,
              bool columns = true);

}  // namespace lightir
