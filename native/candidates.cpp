#include "candidates.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
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

// The documents at the first n positions of an order.
FusedTop taken(const FusedTop& ranking, const std::vector<int64_t>& order, size_t n) {
    FusedTop out{in_order(ranking.doc_ords, order, n), in_order(ranking.scores, order, n), {}};
    for (const FusedColumn& column : ranking.columns) {
        out.columns.push_back({in_order(column.scores, order, n), in_order(column.normalized, order, n),
                               in_order(column.ranks, order, n)});
    }
    return out;
}

FusedTop in_order_of_ids(const FusedTop& fused, const CandidateOptions& options, size_t k) {
    const auto order = order_of_ids(*options.firsts, *options.ids, span_of(fused.doc_ords), span_of(fused.scores));
    return taken(fused, order, std::min(k, order.size()));
}

// The documents that one query is not given, ascending.
class Excluded {
public:
    Excluded(const CandidateOptions& options, size_t query) {
        if (options.excluded_indptr.size == 0) return;
        const auto begin = static_cast<size_t>(options.excluded_indptr[query]);
        const auto end = static_cast<size_t>(options.excluded_indptr[query + 1]);
        doc_ords_.assign(options.excluded.data + begin, options.excluded.data + end);
        std::sort(doc_ords_.begin(), doc_ords_.end());
    }

    size_t size() const { return doc_ords_.size(); }
    bool holds(uint32_t doc_ord) const { return std::binary_search(doc_ords_.begin(), doc_ords_.end(), doc_ord); }

    // The k best of a ranking's other documents.
    FusedTop removed_from(FusedTop ranking, size_t k) const {
        if (doc_ords_.empty()) return ranking;
        std::vector<int64_t> order;
        for (size_t i = 0; i < ranking.doc_ords.size() && order.size() < k; ++i) {
            if (!holds(ranking.doc_ords[i])) order.push_back(static_cast<int64_t>(i));
        }
        return taken(ranking, order, order.size());
    }

private:
    std::vector<uint32_t> doc_ords_;
};

// A pending document in the list of the last branch.
struct Waiting {
    uint32_t doc_ord;
    float score;
    int64_t rank;  // in the list, from 1; 0 outside it
    size_t place;  // its rank without excluded documents
};

// The pending documents of a list, and then others that it does not hold.
std::vector<Waiting> waiting_of(const BranchList& list, const Scorer& scorer, const CandidateOptions& options,
                                const Excluded& excluded) {
    std::vector<Waiting> out;
    size_t place = 0;
    for (size_t i = 0; i < list.doc_ords.size(); ++i) {
        if (excluded.holds(list.doc_ords[i])) continue;
        ++place;
        if (!is_pending(options.pending, list.doc_ords[i])) continue;
        out.push_back({list.doc_ords[i], list.scores[i], static_cast<int64_t>(i) + 1, place});
    }
    const size_t n_listed = out.size();
    for (const uint32_t doc_ord : options.also) {
        const auto same = [&](const Waiting& one) { return one.doc_ord == doc_ord; };
        const auto last = out.begin() + static_cast<std::ptrdiff_t>(n_listed);
        if (!is_pending(options.pending, doc_ord) || std::any_of(out.begin(), last, same)) continue;
        float score = 0.0f;
        scorer.score({&doc_ord, 1}, &score);
        out.push_back({doc_ord, score, 0, std::numeric_limits<size_t>::max()});
    }
    return out;
}

void add_row(std::vector<FusedColumn>& columns, const std::vector<FusedColumn>& source, size_t row) {
    for (size_t b = 0; b < columns.size(); ++b) {
        const bool there = b < source.size();  // the last branch has no column if it is not fused
        columns[b].scores.push_back(there ? source[b].scores[row] : std::numeric_limits<float>::quiet_NaN());
        columns[b].normalized.push_back(there ? source[b].normalized[row] : std::numeric_limits<double>::quiet_NaN());
        columns[b].ranks.push_back(there ? source[b].ranks[row] : 0);
    }
}

void add_row(std::vector<FusedColumn>& columns, const Waiting& document) {
    for (FusedColumn& column : columns) {
        const bool last = &column == &columns.back();
        column.scores.push_back(last ? document.score : std::numeric_limits<float>::quiet_NaN());
        column.normalized.push_back(std::numeric_limits<double>::quiet_NaN());
        column.ranks.push_back(last ? document.rank : 0);
    }
}

// The first k places of fused and pending documents; see search().
FusedTop in_places(const FusedTop& fused, const std::vector<Waiting>& waiting, size_t n_columns, size_t k) {
    FusedTop out;
    out.columns.resize(n_columns);
    size_t next_fused = 0, next_waiting = 0;
    while (out.doc_ords.size() < k) {
        const bool any_fused = next_fused < fused.doc_ords.size();
        const bool due = next_waiting < waiting.size() && waiting[next_waiting].place <= out.doc_ords.size() + 1;
        if (next_waiting < waiting.size() && (due || !any_fused)) {
            const Waiting& document = waiting[next_waiting++];
            const size_t before = next_fused == 0 ? 0 : next_fused - 1;
            out.doc_ords.push_back(document.doc_ord);
            out.scores.push_back(fused.scores.empty() ? static_cast<double>(document.score) : fused.scores[before]);
            add_row(out.columns, document);
        } else if (any_fused) {
            out.doc_ords.push_back(fused.doc_ords[next_fused]);
            out.scores.push_back(fused.scores[next_fused]);
            add_row(out.columns, fused.columns, next_fused++);
        } else {
            break;
        }
    }
    return out;
}

// Whether the scores of the few pending documents show that none of them has one of the first k places, so that the last
// branch, which only ranks them, need not be searched. lists: those of the fused branches.
bool none_in_first(const FusedTop& best, const std::vector<BranchList>& lists, const BranchQueries& last, const Scorer& scorer,
                   const CandidateOptions& options, const Excluded& excluded) {
    // With fewer fused documents than k, pending ones move up from any place.
    if (options.few_pending.size == 0 || options.also.size != 0 || best.doc_ords.size() < options.k) return false;
    if (!last.lists_by_score()) return false;
    const auto scores_of = [&](Span<uint32_t> doc_ords) {
        std::vector<uint32_t> listed;
        for (const uint32_t doc_ord : doc_ords) {
            if (last.allows(doc_ord) && !excluded.holds(doc_ord)) listed.push_back(doc_ord);
        }
        std::vector<float> scores(listed.size());
        scorer.score(span_of(listed), scores.data());
        return scores;
    };
    float highest = 0.0f;
    for (const float score : scores_of(options.few_pending)) highest = std::max(highest, score);
    if (highest == 0.0f) return true;
    const std::vector<float> others = scores_of(span_of(union_of(lists)));
    const auto n_before = std::count_if(others.begin(), others.end(), [&](float score) { return score > highest; });
    return static_cast<size_t>(n_before) >= options.k;
}

// Returns n + more, or the limit of the documents if that is less.
size_t enlarged(size_t n, size_t more) {
    return std::min(std::min(n, most_documents) + std::min(more, most_documents), most_documents);
}

// The ranking of one query.
FusedTop ranked(const std::vector<SearchedBranch>& branches, size_t query, const CandidateOptions& options) {
    const Excluded excluded(options, query);
    const size_t k = enlarged(options.k, excluded.size()), depth = enlarged(options.depth, excluded.size());
    if (branches.size() == 1 && options.also.size == 0) {
        const BranchList list = list_of(branches[0].queries->top(query, k, nullptr), options, k);
        return excluded.removed_from(single_branch(list, options.columns), options.k);
    }
    std::vector<BranchList> lists;
    std::vector<std::unique_ptr<Scorer>> scorers;
    std::vector<FusedBranch> fused;
    std::vector<Watched> watched(branches.size());
    lists.reserve(branches.size());
    for (size_t b = 0; b < branches.size(); ++b) {
        const SearchedBranch& branch = branches[b];
        const bool is_fused = options.fuses_last || b + 1 < branches.size();
        const bool watches = counts_outside(options.scale) && b > 0;
        if (watches) watched[b].doc_ords = union_of(lists);
        scorers.push_back(branch.queries->scorer(query));
        if (!is_fused) break;  // searched below, if that is needed
        lists.push_back(list_of(branch.queries->top(query, depth, watches ? &watched[b] : nullptr), options, depth));
        const bool known = !watched[b].scores.empty();
        const double reach = options.scale == Scale::absolute ? branch.queries->reach(query) : 1.0;
        fused.push_back({span_of(lists.back().doc_ords), span_of(lists.back().scores), scorers.back().get(),
                         branch.weight, branch.complete, known ? &watched[b] : nullptr, branch.low * reach,
                         branch.high * reach});
    }
    FusedTop best = fuse(fused, {options.scale, options.rrf_k, k, options.ids != nullptr, options.columns, options.also,
                                 options.pending});
    if (options.ids != nullptr) best = in_order_of_ids(best, options, k);
    best = excluded.removed_from(std::move(best), options.k);
    if (options.pending.size == 0 && options.fuses_last) return best;
    std::vector<Waiting> waiting;
    if (options.fuses_last) {
        waiting = waiting_of(lists.back(), *scorers.back(), options, excluded);
    } else if (!none_in_first(best, lists, *branches.back().queries, *scorers.back(), options, excluded)) {
        const BranchList last = list_of(branches.back().queries->top(query, depth, nullptr), options, depth);
        waiting = waiting_of(last, *scorers.back(), options, excluded);
    }
    if (waiting.empty() && best.columns.size() == (options.columns ? branches.size() : 0)) return best;
    return in_places(best, waiting, options.columns ? branches.size() : 0, options.k);
}

// Makes the lists of one query for the branches that begin them; the others are prepared before.
void search_in_steps(const std::vector<SearchedBranch>& branches, size_t depth, const CandidateOptions& options) {
    constexpr size_t steps_per_thread = 2;  // so that a thread that is done with one branch helps with another
    struct Step {
        BranchQueries* queries;
        size_t number;
    };
    std::vector<Step> whole, parts;
    for (size_t b = 0; b < branches.size(); ++b) {
        BranchQueries* queries = branches[b].queries;
        const bool is_fused = options.fuses_last || b + 1 < branches.size();
        const size_t n = is_fused ? queries->begin(depth, steps_per_thread * options.n_threads) : 0;
        if (n == 0) queries->prepare(depth, options.n_threads);
        for (size_t number = 0; number < n; ++number) (n == 1 ? whole : parts).push_back({queries, number});
    }
    whole.insert(whole.end(), parts.begin(), parts.end());  // the long ones first
    parallel_for(whole.size(), options.n_threads, [&](size_t i) { whole[i].queries->step(whole[i].number); });
}

}  // namespace

std::vector<FusedTop> search(const std::vector<SearchedBranch>& branches, size_t n_queries,
                             const CandidateOptions& options) {
    int64_t more = 0;
    for (size_t i = 1; i < options.excluded_indptr.size; ++i) {
        more = std::max(more, options.excluded_indptr[i] - options.excluded_indptr[i - 1]);
    }
    const bool alone = branches.size() == 1 && options.also.size == 0;
    const size_t deepest = enlarged(alone ? options.k : options.depth, static_cast<size_t>(more));
    if (n_queries == 1 && options.n_threads > 1) {
        search_in_steps(branches, deepest, options);
    } else {
        for (const SearchedBranch& branch : branches) branch.queries->prepare(deepest, options.n_threads);
    }
    std::vector<FusedTop> rankings(n_queries);
    parallel_for(n_queries, options.n_threads, [&](size_t query) { rankings[query] = ranked(branches, query, options); });
    return rankings;
}

}  // namespace lightir
