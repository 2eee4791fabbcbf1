#include "hybrid.hpp"

#include <algorithm>
#include <cstdint>

namespace lightir {

namespace {

struct Listed {
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

Listed listed(const std::vector<Hit>& hits, const Ranked& how, size_t depth) {
    Listed out;
    out.doc_ords.reserve(hits.size());
    out.scores.reserve(hits.size());
    for (const Hit& hit : hits) {
        out.doc_ords.push_back(hit.doc_ord);
        out.scores.push_back(hit.score);
    }
    const size_t n = std::min(depth, hits.size());
    if (how.ids != nullptr) {
        const auto order = order_of_ids(*how.firsts, *how.ids, span_of(out.doc_ords), span_of(out.scores));
        return {in_order(out.doc_ords, order, n), in_order(out.scores, order, n)};
    }
    out.doc_ords.resize(n);
    out.scores.resize(n);
    return out;
}

// The documents of some lists, ascending.
std::vector<uint32_t> all_of(const std::vector<Listed>& lists) {
    std::vector<uint32_t> out;
    for (const Listed& list : lists) out.insert(out.end(), list.doc_ords.begin(), list.doc_ords.end());
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
}

FusedTop alone(Listed found, bool columns) {
    FusedTop out{std::move(found.doc_ords), {found.scores.begin(), found.scores.end()}, {}};
    if (!columns) return out;
    FusedColumn column{std::move(found.scores), out.scores, {}};
    for (size_t i = 0; i < out.scores.size(); ++i) column.ranks.push_back(static_cast<int64_t>(i) + 1);
    out.columns.push_back(std::move(column));
    return out;
}

FusedTop in_order_of_ids(FusedTop found, const Ranked& how) {
    const auto order = order_of_ids(*how.firsts, *how.ids, span_of(found.doc_ords), span_of(found.scores));
    const size_t n = std::min(how.k, order.size());
    FusedTop out{in_order(found.doc_ords, order, n), in_order(found.scores, order, n), {}};
    for (const FusedColumn& column : found.columns) {
        out.columns.push_back({in_order(column.scores, order, n), in_order(column.normalized, order, n),
                               in_order(column.ranks, order, n)});
    }
    return out;
}

}  // namespace

FusedTop ranked(const std::vector<QueriedBranch>& branches, const Ranked& how) {
    if (branches.size() == 1) return alone(listed(branches[0].top(how.k, nullptr), how, how.k), how.columns);
    std::vector<Listed> lists;
    std::vector<FusedBranch> fused;
    std::vector<Watched> watched(branches.size());
    lists.reserve(branches.size());
    for (size_t b = 0; b < branches.size(); ++b) {
        const QueriedBranch& branch = branches[b];
        const bool watches = counts_outside(how.scale) && b > 0;
        if (watches) watched[b].doc_ords = all_of(lists);
        lists.push_back(listed(branch.top(how.depth, watches ? &watched[b] : nullptr), how, how.depth));
        const bool known = !watched[b].scores.empty();
        fused.push_back({span_of(lists.back().doc_ords), span_of(lists.back().scores), branch.scorer, branch.weight,
                         branch.complete, known ? &watched[b] : nullptr});
    }
    FusedTop best = fuse(fused, how.scale, how.rrf_k, how.k, how.ids != nullptr, how.columns);
    return how.ids == nullptr ? best : in_order_of_ids(std::move(best), how);
}

}  // namespace lightir
