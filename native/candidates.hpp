// A search of n queries: each branch's best documents, and one ranking of them for each query.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fusion.hpp"
#include "segments.hpp"
#include "top_k.hpp"

namespace lightir {

// A batch of queries for one branch.
class BranchQueries {
public:
    virtual ~BranchQueries() = default;

    // Does the work that all queries share, for lists of at most k documents. Called once, before `top`.
    virtual void prepare(size_t k, size_t n_threads) { static_cast<void>(k), static_cast<void>(n_threads); }

    // Begins the list of a batch's only query, of at most k documents, in steps that may run at the same time. Returns their
    // number, at most n_steps; 0 if the list does not take long or `prepare` divides the threads better. After all steps `top`
    // returns the list, and `prepare` is not called.
    virtual size_t begin(size_t k, size_t n_steps) { return static_cast<void>(k), static_cast<void>(n_steps), 0; }
    virtual void step(size_t number) { static_cast<void>(number); }

    // Returns a query's k best documents, score down, then doc_ord up, with all that tie with the last of them, or a prefix
    // that holds every document that can be needed. May fill the scores of the watched documents, unless null. Called once per
    // query, for several queries at a time.
    virtual std::vector<Hit> top(size_t query, size_t k, Watched* watched) = 0;

    // Scores documents for a query.
    virtual std::unique_ptr<Scorer> scorer(size_t query) const = 0;

    // Returns what a query's scores are measured by under Scale::absolute: 1, or the weight of all its terms.
    virtual double reach(size_t query) const { return static_cast<void>(query), 1.0; }

    // Whether `top` lists exactly the documents that `allows` admits and `scorer` scores above 0. The scores of a few documents
    // can then save a search.
    virtual bool lists_by_score() const { return false; }

    // Whether `top` may return a document, whatever its score. Asked only if `lists_by_score`.
    virtual bool allows(uint32_t doc_ord) const { return static_cast<void>(doc_ord), true; }
};

// One branch of a search: its weight in the sum, and whether no document outside its list scores more than the list's last.
struct SearchedBranch {
    BranchQueries* queries = nullptr;
    double weight = 1.0;
    bool complete = false;
    double low = 0.0, high = 1.0;  // the scores that Scale::absolute normalizes to 0 and to 1, for a reach of 1
};

// How branches become a ranking.
struct CandidateOptions {
    Scale scale = Scale::max;
    double rrf_k = 60.0;
    size_t k = 10;
    size_t depth = 1000;         // length of each branch's list
    Span<int64_t> excluded_indptr;  // query i is not given excluded[excluded_indptr[i]] to [excluded_indptr[i + 1]]; or empty
    Span<uint32_t> excluded;        // their number is added to the query's k and depth
    Span<uint32_t> also;         // documents to rank for every query, whether a branch lists them or not
    bool columns = true;         // whether to return the branches' scores of the candidates
    size_t n_threads = 1;
    Span<uint8_t> pending;       // by doc_ord, whether a document is pending; or empty if none takes part
    bool fuses_last = true;      // whether the last branch is fused, or only ranks pending documents
    Span<uint32_t> few_pending;  // the pending documents, if they are so few that scoring them costs less than a search; or empty
    const FirstOrds* firsts = nullptr;
    const std::vector<SegmentIds>* ids = nullptr;  // of the documents, or null where they ascend with the doc_ords
};

// Returns each query's k best documents: score down, then id up. Branches' lists are cut at the depth in that order too. One
// branch alone gives its k best documents, and keeps its scores. Excluded documents are removed at the end.
//
// Pending documents are listed by the last branch only, and are not fused. The n-th document of that branch's list, if it is
// pending, is the n-th of the result; the fused documents take the other places, and where they are used up, pending ones
// move up. A pending document has the score of the last fused document before it, or of the first one if it is before all,
// or its score in the list if no document is fused. Its columns are NaN, except for its score in the last branch. Excluded
// documents do not count in the list. If the last branch is not fused, its column is NaN for fused documents.
//
// Queries share the threads. The branches of one query alone that take long are searched at the same time.
std::vector<FusedTop> search(const std::vector<SearchedBranch>& branches, size_t n_queries, const CandidateOptions& options);

}  // namespace lightir
