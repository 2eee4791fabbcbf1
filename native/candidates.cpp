#include "candidates.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "parallel.hpp"

namespace lightir {

namespace {

// A branch's list for one query.
struct BranchList {
    std::vector<uint32_t> doc_ords;
    std::vector<float> scores;
};

template <typename T>
std::vector<T> in_order(const std::vector<T>& values, const std::vector<int64_t>& order, size_t n) {
    std::vector<T> out;
    out.reserve(n);
    for (size_t i = 0; i < n; ++i) out.push_back(values[static_cast<size_t>(order[i])]);
    return out;
}

template <typename T>
Span<T> span_of(const std::vector<T>& values) {
    return {values.data(), values.size()};
}

BranchList list_of(const std::vector<Hit>& hits, const CandidateOptions& options, size_t depth) {
    BranchList out;
    out.doc_ords.reserve(hits.size());
    out.scores.reserve(hits.size());
    for (const Hit& hit : hits) {
        out.doc_ords.push_back(hit.doc_ord);
        out.scores.push_back(hit.score);
    }
    const size_t n = std::min(depth, hits.size());
    if (options.ids != nullptr) {
        const auto order = order_of_ids(*options.firsts, *options.ids, span_of(out.doc_ords), span_of(out.scores));
        return {in_order(out.doc_ords, order, n), in_order(out.scores, order, n)};
    }
    out.doc_ords.resize(n);
    out.scores.resize(n);
    return out;
}

// The documents of some lists, ascending.
std::vector<uint32_t> union_of(const std::vector<BranchList>& lists) {
    std::vector<uint32_t> out;
    for (const BranchList& list : lists) out.insert(out.end(), list.doc_ords.begin(), list.doc_ords.end());
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
}

FusedTop single_branch(BranchList list, bool columns) {
    FusedTop out{std::move(list.doc_ords), {list.scores.begin(), list.scores.end()}, {}};
    if (!columns) return out;
    FusedColumn column{std::move(list.scores), out.scores, {}};
    for (size_t i = 0; i < out.scores.size(); ++i) column.ranks.push_back(static_cast<int64_t>(i) + 1);
    out.columns.push_back(std::move(column));
    return out;
}

FusedTop in_order_of_ids(FusedTop fused, const CandidateOptions& options, size_t k) {
    const auto order = order_of_ids(*options.firsts, *options.ids, span_of(fused.doc_ords), span_of(fused.scores));
    const size_t n = std::min(k, order.size());
    FusedTop out{in_order(fused.doc_ords, order, n), in_order(fused.scores, order, n), {}};
    for (const FusedColumn& column : fused.columns) {
        out.columns.push_back({in_order(column.scores, order, n), in_order(column.normalized, order, n),
                               in_order(column.ranks, order, n)});
    }
    return out;
}

// The ranking of one query.
FusedTop ranked(const std::vector<SearchedBranch>& branches, size_t query, const CandidateOptions& options) {
    const size_t more = options.more.size == 0 ? 0 : static_cast<size_t>(options.more[query]);
    const size_t k = options.k + more, depth = options.depth + more;
    if (branches.size() == 1 && options.also.size == 0) {
        return single_branch(list_of(branches[0].queries->top(query, k, nullptr), options, k), options.columns);
    }
    std::vector<BranchList> lists;
    std::vector<std::unique_ptr<Scorer>> scorers;
    std::vector<FusedBranch> fused;
    std::vector<Watched> watched(branches.size());
    lists.reserve(branches.size());
    for (size_t b = 0; b < branches.size(); ++b) {
        const SearchedBranch& branch = branches[b];
        const bool watches = counts_outside(options.scale) && b > 0;
        if (watches) watched[b].doc_ords = union_of(lists);
        lists.push_back(list_of(branch.queries->top(query, depth, watches ? &watched[b] : nullptr), options, depth));
        scorers.push_back(branch.queries->scorer(query));
        const bool known = !watched[b].scores.empty();
        fused.push_back({span_of(lists.back().doc_ords), span_of(lists.back().scores), scorers.back().get(),
                         branch.weight, branch.complete, known ? &watched[b] : nullptr});
    }
    FusedTop best = fuse(fused, {options.scale, options.rrf_k, k, options.ids != nullptr, options.columns, options.also});
    return options.ids == nullptr ? best : in_order_of_ids(std::move(best), options, k);
}

}  // namespace

std::vector<FusedTop> search(const std::vector<SearchedBranch>& branches, size_t n_queries,
                             const CandidateOptions& options) {
    int64_t more = 0;
    for (const int64_t n : options.more) more = std::max(more, n);
    const bool alone = branches.size() == 1 && options.also.size == 0;
    const size_t deepest = (alone ? options.k : options.depth) + static_cast<size_t>(more);
    for (const SearchedBranch& branch : branches) branch.queries->prepare(deepest, options.n_threads);
    std::vector<FusedTop> rankings(n_queries);
    parallel_for(n_queries, options.n_threads, [&](size_t query) { rankings[query] = ranked(branches, query, options); });
    return rankings;
}

}  // namespace lightir
