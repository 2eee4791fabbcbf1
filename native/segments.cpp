#include "segments.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "dense.hpp"
#include "errors.hpp"

namespace lightir {

namespace {

using Term = std::pair<uint32_t, float>;

std::vector<Term> terms_of(const SegmentedQuery& query, size_t segment) {
    std::vector<Term> terms;
    for (size_t i = 0; i < query.term_ids.size; ++i) {
        const uint32_t term = query.term_ids[i];
        if (query.places.data == nullptr) {
            terms.emplace_back(term, query.weights[i]);
            continue;
        }
        if (term >= query.width) throw InvalidInput("a query's term has no place in the segments");
        const int64_t place = query.places[segment * query.width + term];
        if (place >= 0) terms.emplace_back(static_cast<uint32_t>(place), query.weights[i]);
    }
    if (!std::is_sorted(terms.begin(), terms.end())) std::sort(terms.begin(), terms.end());
    return terms;
}

// A query's terms, for walks through rows in ascending order of term ids.
class Terms {
public:
    explicit Terms(std::vector<Term> terms) : terms_(std::move(terms)), marked_(n_marks, 0) {
        for (const Term& term : terms_) marked_[term.first % n_marks] = 1;
    }

    // Calls use(weight, place) for each of the row's terms [first, last) that the query has: most entries cost no more
    // than a look at their mark.
    template <typename Use>
    void matches(const uint32_t* term_ids, size_t first, size_t last, const Use& use) const {
        auto next = terms_.begin();
        for (size_t place = first; place < last; ++place) {
            const uint32_t term_id = term_ids[place];
            if (!marked_[term_id % n_marks]) continue;
            while (next != terms_.end() && next->first < term_id) ++next;
            if (next == terms_.end()) return;
            if (next->first == term_id) use(next->second, place);
        }
    }

private:
    static constexpr size_t n_marks = 4096;
    std::vector<Term> terms_;
    std::vector<uint8_t> marked_;
};

constexpr size_t ahead = 8;  // documents whose rows are fetched before they are needed

// Asks for the cache lines of array[first, last). A damaged place may point anywhere: an address to fetch is never read,
// and made of integers.
template <typename T>
void fetch(const T* array, int64_t first, int64_t last) {
    constexpr uint64_t line = 64, most = 16;
    const uint64_t begin = reinterpret_cast<uint64_t>(array) + sizeof(T) * static_cast<uint64_t>(first);
    const uint64_t n_bytes = sizeof(T) * static_cast<uint64_t>(last - first);
    for (uint64_t i = 0; i < std::min(n_bytes / line + 1, most); ++i) {
        __builtin_prefetch(reinterpret_cast<const void*>(begin + line * i));
    }
}

template <typename W, typename Weigh>
void score_rows(const SparseRows<W>& rows, const std::vector<uint32_t>& places, const Terms& terms, const Weigh& weigh,
                float* out) {
    for (size_t i = 0; i < places.size(); ++i) {
        if (i + 2 * ahead < places.size()) __builtin_prefetch(rows.indptr.data + places[i + 2 * ahead]);
        if (i + ahead < places.size()) {
            const int64_t first = rows.indptr[places[i + ahead]], last = rows.indptr[places[i + ahead] + 1];
            fetch(rows.term_ids.data, first, last);
            fetch(rows.weights.data, first, last);
        }
        const size_t doc = places[i];
        const int64_t first = rows.indptr[doc], last = rows.indptr[doc + 1];
        if (first < 0 || last < first || static_cast<size_t>(last) > rows.term_ids.size) {
            throw DamagedArrays("document " + std::to_string(doc) + " has no row in the forward index");
        }
        float score = 0.0f;
        terms.matches(rows.term_ids.data, static_cast<size_t>(first), static_cast<size_t>(last),
                      [&](float weight, size_t place) { score += weight * weigh(rows.weights[place], doc); });
        out[i] = score;
    }
}

template <typename W>
void score_segment(const SparseRows<W>& rows, Span<uint32_t> lengths, const Saturation& how,
                   const std::vector<uint32_t>& places, const Terms& terms, float* out) {
    if (lengths.data == nullptr) {
        score_rows(rows, places, terms, [](W weight, size_t) { return static_cast<float>(weight); }, out);
        return;
    }
    const auto saturated = [&](W count, size_t doc) {
        const double tf = static_cast<double>(count);
        const double penalty = how.k1 * ((1.0 - how.b) + how.b * static_cast<double>(lengths[doc]) / how.mean);
        return static_cast<float>(tf / (tf + penalty));
    };
    score_rows(rows, places, terms, saturated, out);
}

void score_matrix(const Matrix& rows, const std::vector<uint32_t>& places, Span<float> query, float* out) {
    constexpr size_t batch = 16;
    const auto row_bytes = static_cast<int64_t>(rows.row_bytes());
    for (size_t first = 0; first < places.size(); first += batch) {
        for (size_t i = first + batch; i < std::min(first + 2 * batch, places.size()); ++i) {
            fetch(static_cast<const uint8_t*>(rows.data), places[i] * row_bytes, (places[i] + 1) * row_bytes - 1);
        }
        const size_t n = std::min(batch, places.size() - first);
        dense_pair_scores(rows, {places.data() + first, n}, query.data, query.size, out + first);
    }
}

// The k best of hits of different documents and those that tie with the last of them, in order.
std::vector<Hit> best_and_ties(std::vector<Hit> hits, size_t k) {
    const auto before = [](const Hit& a, const Hit& b) {
        return a.score != b.score ? a.score > b.score : a.doc_ord < b.doc_ord;
    };
    if (k < hits.size()) {
        const auto end = hits.begin() + static_cast<std::ptrdiff_t>(k);
        auto last = end;
        if (k > 0) {
            std::nth_element(hits.begin(), end - 1, hits.end(), before);
            const float least = (end - 1)->score;
            last = std::partition(end, hits.end(), [&](const Hit& hit) { return hit.score == least; });
        }
        hits.erase(last, hits.end());
    }
    std::sort(hits.begin(), hits.end(), before);
    return hits;
}

constexpr double rounding = 1e-4;  // more than float sums of a few thousand terms can be off

// One segment's documents for a sparse query, by stored scores, as far down as they were asked for.
class SegmentList {
public:
    SegmentList(const SparseSegment& segment, const std::vector<Term>& terms, uint32_t first_ord, double mean,
                Bitmap allowed)
        : segment_(segment), first_ord_(first_ord), allowed_(allowed),
          ratio_(segment.mean == 0 ? 1.0 : mean / segment.mean) {
        for (const auto& [term_id, weight] : terms) {
            term_ids_.push_back(term_id);
            weights_.push_back(weight);
        }
    }

    bool exact() const { return ratio_ == 1.0; }
    double lowest(const Hit& hit) const {
        return exact() ? hit.score : hit.score * (std::min(1.0, ratio_) * (1 - rounding));
    }
    double highest(const Hit& hit) const { return hit.score * (std::max(1.0, ratio_) * (1 + rounding)); }
    const std::vector<Hit>& hits() const { return hits_; }

    // The k best, or those of them that score at least the floor, which a list that may be asked again does not have.
    void ask(size_t k, float floor) {
        if (!segment_.there || term_ids_.empty()) return;
        const SparseQuery query{{term_ids_.data(), term_ids_.size()}, {weights_.data(), weights_.size()}};
        const size_t n_docs = segment_.byte_postings ? segment_.narrow_postings.n_docs : segment_.wide_postings.n_docs;
        k = std::min(k, n_docs);
        hits_ = segment_.byte_postings ? sparse_top_k(segment_.narrow_postings, query, k, allowed_, floor)
                                       : sparse_top_k(segment_.wide_postings, query, k, allowed_, floor);
        for (Hit& hit : hits_) hit.doc_ord += first_ord_;
        whole_ = hits_.size() < k || k == n_docs;
    }

    // Whether a document that was not given may score as much.
    bool may_withhold(double score) const { return !exact() && !whole_ && highest(hits_.back()) >= score; }

private:
    const SparseSegment& segment_;
    uint32_t first_ord_;
    Bitmap allowed_;
    double ratio_;
    std::vector<uint32_t> term_ids_;
    std::vector<float> weights_;
    std::vector<Hit> hits_;
    bool whole_ = true;
};

// The k-th best of the scores that were seen.
class KthBest {
public:
    KthBest(size_t k, float nothing) : k_(k), nothing_(nothing) {}

    void add(float score) { scores_.push_back(score); }

    // The k-th best score, or `nothing` while fewer were seen.
    float value() {
        if (k_ == 0 || scores_.size() < k_) return nothing_;
        const auto last = scores_.begin() + static_cast<std::ptrdiff_t>(k_ - 1);
        std::nth_element(scores_.begin(), last, scores_.end(), std::greater<float>());
        scores_.resize(k_);
        return *last;
    }

private:
    size_t k_;
    float nothing_;
    std::vector<float> scores_;
};

// What k documents score at least, or 0.
double kth_lowest(const std::vector<SegmentList>& lists, size_t k) {
    std::vector<double> scores;
    for (const SegmentList& list : lists) {
        for (const Hit& hit : list.hits()) scores.push_back(list.lowest(hit));
    }
    if (k == 0 || scores.size() < k) return 0.0;
    const auto last = scores.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(scores.begin(), last, scores.end(), std::greater<double>());
    return *last;
}

// All hits with their true scores, but for those that cannot score `least`.
std::vector<Hit> true_hits(const std::vector<SegmentList>& lists, const Scorer& scorer, double least) {
    std::vector<Hit> hits;
    std::vector<uint32_t> stale;
    for (const SegmentList& list : lists) {
        for (const Hit& hit : list.hits()) {
            if (list.exact()) hits.push_back(hit);
            else if (list.highest(hit) >= least) stale.push_back(hit.doc_ord);
        }
    }
    std::vector<float> scores(stale.size());
    scorer.score({stale.data(), stale.size()}, scores.data());
    for (size_t i = 0; i < stale.size(); ++i) hits.push_back({stale[i], scores[i]});
    return hits;
}

}  // namespace

FirstOrds::FirstOrds(std::vector<uint32_t> firsts) : firsts_(std::move(firsts)) {
    if (firsts_.empty() || firsts_[0] != 0 || !std::is_sorted(firsts_.begin(), firsts_.end())) {
        throw InvalidInput("the segments' first doc_ords must start at 0 and never fall");
    }
}

template <typename Use>
void FirstOrds::each(Span<uint32_t> doc_ords, const Use& use) const {
    std::vector<std::vector<uint32_t>> places(n_segments()), at(n_segments());
    for (size_t i = 0; i < doc_ords.size; ++i) {
        const uint32_t doc_ord = doc_ords[i];
        if (doc_ord >= firsts_.back()) {
            throw InvalidInput("doc_ord " + std::to_string(doc_ord) + " is outside the " +
                               std::to_string(firsts_.back()) + " documents");
        }
        const auto next = std::upper_bound(firsts_.begin(), firsts_.end(), doc_ord);
        const size_t segment = static_cast<size_t>(next - firsts_.begin()) - 1;
        places[segment].push_back(doc_ord - firsts_[segment]);
        at[segment].push_back(static_cast<uint32_t>(i));
    }
    for (size_t segment = 0; segment < n_segments(); ++segment) {
        if (!places[segment].empty()) use(segment, places[segment], at[segment]);
    }
}

void DenseScorer::score(Span<uint32_t> doc_ords, float* scores) const {
    std::vector<float> found;
    firsts_.each(doc_ords, [&](size_t segment, const std::vector<uint32_t>& places, const std::vector<uint32_t>& at) {
        found.assign(places.size(), 0.0f);
        const DenseSegment& here = segments_[segment];
        if (here.there) score_matrix(here.rows, places, query_, found.data());
        for (size_t i = 0; i < at.size(); ++i) scores[at[i]] = found[i];
    });
}

void SparseScorer::score(Span<uint32_t> doc_ords, float* scores) const {
    std::vector<float> found;
    firsts_.each(doc_ords, [&](size_t segment, const std::vector<uint32_t>& places, const std::vector<uint32_t>& at) {
        found.assign(places.size(), 0.0f);
        const SparseSegment& here = segments_[segment];
        if (here.there) {
            const Terms terms(terms_of(query_, segment));
            if (here.bytes) score_segment(here.narrow, here.lengths, saturation_, places, terms, found.data());
            else score_segment(here.wide, here.lengths, saturation_, places, terms, found.data());
        }
        for (size_t i = 0; i < at.size(); ++i) scores[at[i]] = found[i];
    });
}

std::vector<std::vector<Hit>> segments_top_k(const FirstOrds& firsts, const std::vector<DenseSegment>& segments,
                                             const float* queries, size_t n_queries, size_t dim, size_t k,
                                             size_t n_threads, const std::vector<Bitmap>& allowed) {
    std::vector<std::vector<Hit>> found(n_queries);
    constexpr float lowest = -std::numeric_limits<float>::infinity();
    std::vector<KthBest> best(n_queries, KthBest(k, lowest));
    std::vector<float> floors(n_queries, lowest);
    for (size_t s = 0; s < segments.size(); ++s) {
        const DenseSegment& here = segments[s];
        if (!here.there) continue;
        const auto lists = dense_top_k(here.rows, queries, n_queries, dim, std::min(k, here.rows.n_rows), n_threads,
                                       allowed[s], here.copies, floors.data());
        for (size_t q = 0; q < n_queries; ++q) {
            for (const Hit& hit : lists[q]) {
                found[q].push_back({hit.doc_ord + firsts[s], hit.score});
                best[q].add(hit.score);
            }
            if (s + 1 < segments.size()) floors[q] = best[q].value();
        }
    }
    for (std::vector<Hit>& hits : found) hits = best_and_ties(std::move(hits), k);
    return found;
}

std::vector<Hit> segments_top_k(const FirstOrds& firsts, const std::vector<SparseSegment>& segments,
                                const SegmentedQuery& query, const Saturation& saturation, size_t k,
                                const std::vector<Bitmap>& allowed) {
    const size_t most = std::min<size_t>(k, firsts[segments.size()]);
    std::vector<SegmentList> lists;
    lists.reserve(segments.size());
    KthBest best_so_far(k, 0.0f);
    for (size_t s = 0; s < segments.size(); ++s) {
        lists.emplace_back(segments[s], terms_of(query, s), firsts[s], saturation.mean, allowed[s]);
        SegmentList& list = lists.back();
        if (list.exact()) list.ask(k, best_so_far.value());
        else list.ask(most + most / 8 + 16, 0.0f);
        for (const Hit& hit : list.hits()) best_so_far.add(static_cast<float>(list.lowest(hit)));
    }
    const SparseScorer scorer(firsts, segments, query, saturation);
    while (true) {
        std::vector<Hit> best = best_and_ties(true_hits(lists, scorer, kth_lowest(lists, k)), k);
        const double reached = best.size() >= k && k > 0 ? static_cast<double>(best[k - 1].score) : 0.0;
        bool lacking = false;
        for (SegmentList& list : lists) {
            if (!list.may_withhold(reached)) continue;
            lacking = true;
            list.ask(4 * list.hits().size(), 0.0f);
        }
        if (!lacking) return best;
    }
}

}  // namespace lightir
