// One query through all branches of a view: each one's best documents, and one ranking of them.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "fusion.hpp"
#include "segments.hpp"
#include "top_k.hpp"

namespace lightir {

// What one branch gives a query. top(k) are its k best documents, score down, then doc_ord up, with all that tie with the
// last of them, or as many as can be needed; it may give watched documents, unless null, their scores, or leave them
// without. The scorer's, weight and complete are as in FusedBranch.
struct QueriedBranch {
    std::function<std::vector<Hit>(size_t, Watched*)> top;
    const Scorer* scorer = nullptr;
    double weight = 1.0;
    bool complete = false;
};

// How branches become a ranking.
struct Ranked {
    Scale scale = Scale::max;
    double rrf_k = 60.0;
    size_t k = 10;
    size_t depth = 1000;    // of each branch's list
    bool columns = true;    // whether it is asked what each branch says of the best
    const FirstOrds* firsts = nullptr;
    const std::vector<SegmentIds>* ids = nullptr;  // of the documents, or null where they ascend with the doc_ords
};

// The k best documents: score down, then id up. Branches' lists are cut at the depth in that order too. One branch alone
// keeps its scores.
FusedTop ranked(const std::vector<QueriedBranch>& branches, const Ranked& how);

}  // namespace lightir
