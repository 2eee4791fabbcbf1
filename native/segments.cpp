#include "segments.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "dense.hpp"
#include "errors.hpp"
#include "parallel.hpp"

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

// A query's terms, for lookups of rows whose term ids ascend.
class Terms {
public:
    explicit Terms(std::vector<Term> terms) : terms_(std::move(terms)), marked_(n_marks, 0) {
        for (const Term& term : terms_) marked_[term.first % n_marks] = 1;
    }

    // Calls use(weight, entry) for each entry in [first, last) of a row whose term the query has, in ascending order.
    template <typename Use>
    void matches(const uint32_t* term_ids, size_t first, size_t last, const Use& use) const {
        size_t n_steps = 1;
        while ((last - first) >> n_steps != 0) ++n_steps;
        if (terms_.size() * n_steps < last - first) search(term_ids, first, last, use);
        else walk(term_ids, first, last, use);
    }

private:
    // Searches for few terms, several at a time: the steps of one search depend on each other, those of different ones do not.
    template <typename Use>
    void search(const uint32_t* term_ids, size_t first, size_t last, const Use& use) const {
        for (size_t t = 0; t < terms_.size(); t += at_once) {
            uint32_t wanted[at_once];
            size_t places[at_once];
            for (size_t l = 0; l < at_once; ++l) {
                wanted[l] = terms_[std::min(t + l, terms_.size() - 1)].first;
                places[l] = first;
            }
            for (size_t left = last - first; left > 1; left -= left / 2) {
                const size_t half = left / 2;
                for (size_t l = 0; l < at_once; ++l) {
                    places[l] += half * static_cast<size_t>(term_ids[places[l] + half] <= wanted[l]);
                }
            }
            for (size_t l = 0; l < std::min(at_once, terms_.size() - t); ++l) {
                if (term_ids[places[l]] == wanted[l]) use(terms_[t + l].second, places[l]);
            }
        }
    }

    // For many terms, tests the mark of each of the row's entries.
    template <typename Use>
    void walk(const uint32_t* term_ids, size_t first, size_t last, const Use& use) const {
        auto next = terms_.begin();
        for (size_t place = first; place < last; ++place) {
            const uint32_t term_id = term_ids[place];
            if (!marked_[term_id % n_marks]) continue;
            while (next != terms_.end() && next->first < term_id) ++next;
            if (next == terms_.end()) return;
            if (next->first == term_id) use(next->second, place);
        }
    }

    static constexpr size_t n_marks = 4096, at_once = 8;
    std::vector<Term> terms_;
    std::vector<uint8_t> marked_;
};

constexpr size_t ahead = 8;  // number of documents whose rows are prefetched

// Prefetches the cache lines of array[first, last). Damaged offsets may be out of bounds; they are safe here because the
// address is computed with integers and never read.
template <typename T>
void fetch(const T* array, int64_t first, int64_t last) {
    constexpr uint64_t line = 64, most = 16;
    const uint64_t begin = reinterpret_cast<uint64_t>(array) + sizeof(T) * static_cast<uint64_t>(first);
    const uint64_t n_bytes = sizeof(T) * (static_cast<uint64_t>(last) - static_cast<uint64_t>(first));
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

// One segment's best documents for a sparse query, by stored scores. A stored score is exact, or it is a bound of the
// exact score because it is a 16-bit sum or because it was stored for another mean length.
class SegmentList {
public:
    // share: expected number of the k best documents that are in this segment.
    SegmentList(const SparseSegment& segment, const std::vector<Term>& terms, uint32_t first_ord, double mean,
                Bitmap allowed, double share)
        : segment_(segment), first_ord_(first_ord), allowed_(allowed),
          ratio_(segment.mean == 0 ? 1.0 : mean / segment.mean) {
        for (const auto& [term_id, weight] : terms) {
            term_ids_.push_back(term_id);
            weights_.push_back(weight);
        }
        coarse_ = segment.there && segment.byte_postings && coarse_pays(share);
    }

    // Whether stored scores are exact.
    bool exact() const { return current() && !coarse_; }
    // Whether the postings were stored for the current mean length; ask() then returns all documents that can be among the k
    // best.
    bool current() const { return ratio_ == 1.0; }
    double lowest(const Hit& hit) const {
        if (exact()) return hit.score;
        const double least = unit_ * std::max(0.0, hit.score - over_);
        return least * (std::min(1.0, ratio_) * (1 - float_rounding));
    }
    double highest(float stored) const {
        return unit_ * (stored + under_) * (std::max(1.0, ratio_) * (1 + float_rounding));
    }
    const std::vector<Hit>& hits() const { return hits_; }

    // Whether any document may match.
    bool matches() const { return segment_.there && !term_ids_.empty(); }

    SparsePart part() const {
        SparsePart out{nullptr, nullptr, query(), allowed_, first_ord_};
        if (segment_.byte_postings) out.narrow = &segment_.narrow_postings;
        else out.wide = &segment_.wide_postings;
        return out;
    }

    // Finds the segment's k best documents. floor is their minimum score; it must be 0 unless the list is current.
    void ask(size_t k, double floor) {
        if (!matches()) return;
        const size_t n_docs = segment_.byte_postings ? segment_.narrow_postings.n_docs : segment_.wide_postings.n_docs;
        k = std::min(k, n_docs);
        if (coarse_) {
            ask_coarse(k, floor);
        } else {
            const float least = static_cast<float>(floor);
            hits_ = segment_.byte_postings ? sparse_top_k(segment_.narrow_postings, query(), k, allowed_, least)
                                           : sparse_top_k(segment_.wide_postings, query(), k, allowed_, least);
            left_out_ = hits_.empty() ? 0.0f : hits_.back().score;
        }
        for (Hit& hit : hits_) hit.doc_ord += first_ord_;
        whole_ = hits_.size() < k || k == n_docs;
    }

    // Whether a document that is not among the hits may score this much.
    bool may_withhold(double score) const { return !current() && !whole_ && highest(left_out_) >= score; }

private:
    SparseQuery query() const {
        return {{term_ids_.data(), term_ids_.size()}, {weights_.data(), weights_.size()}};
    }

    // Whether coarse sums save time: computing one exact score takes as long as they save on postings_a_score postings.
    bool coarse_pays(double share) const {
        constexpr double postings_a_score = 2500.0;
        if (has_small_counts(query())) return false;
        return static_cast<double>(n_postings(segment_.narrow_postings, query())) >= postings_a_score * share;
    }

    void ask_coarse(size_t k, double floor) {
        CoarseTop found = coarse_top_k(segment_.narrow_postings, query(), k, allowed_, floor, segment_.binary);
        unit_ = found.unit;
        over_ = found.over;
        under_ = found.under;
        left_out_ = found.left_out;
        hits_ = std::move(found.hits);
    }

    const SparseSegment& segment_;
    uint32_t first_ord_;
    Bitmap allowed_;
    double ratio_;
    double unit_ = 1.0, over_ = 0.0, under_ = 0.0;
    float left_out_ = 0.0f;
    bool coarse_ = false;
    std::vector<uint32_t> term_ids_;
    std::vector<float> weights_;
    std::vector<Hit> hits_;
    bool whole_ = true;
};

// The k-th best of the scores added.
class KthBest {
public:
    KthBest(size_t k, float nothing) : k_(k), nothing_(nothing) {}

    void add(float score) { scores_.push_back(score); }

    // Returns the k-th best score, or `nothing` if fewer were added.
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

// Returns a lower bound of the k-th best score, or 0 if there are fewer hits.
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

// Returns the hits with their exact scores, without those that cannot score `least`.
std::vector<Hit> true_hits(const std::vector<SegmentList>& lists, const Scorer& scorer, double least) {
    std::vector<Hit> hits;
    std::vector<uint32_t> bounded;
    for (const SegmentList& list : lists) {
        for (const Hit& hit : list.hits()) {
            if (list.exact()) hits.push_back(hit);
            else if (list.highest(hit.score) >= least) bounded.push_back(hit.doc_ord);
        }
    }
    std::vector<float> scores(bounded.size());
    scorer.score({bounded.data(), bounded.size()}, scores.data());
    for (size_t i = 0; i < bounded.size(); ++i) {
        if (scores[i] > 0.0f) hits.push_back({bounded[i], scores[i]});
    }
    return hits;
}

// One of several documents with equal scores.
struct Tied {
    int64_t at;
    size_t segment, place;
    const uint8_t* text = nullptr;
    size_t n_bytes = 0;
};

// Finds the ids of documents; each step prefetches the memory of the next. If damaged offsets put an id outside the text,
// the id is treated as empty and the search continues; checksums report the damage.
void find_ids(const std::vector<SegmentIds>& ids, std::vector<Tied>& tied) {
    for (const Tied& doc : tied) __builtin_prefetch(ids[doc.segment].indptr.data + doc.place);
    for (Tied& doc : tied) {
        const SegmentIds& here = ids[doc.segment];
        const int64_t begin = here.indptr[doc.place], end = here.indptr[doc.place + 1];
        if (begin < 0 || end < begin || static_cast<size_t>(end) > here.text.size) continue;
        doc.text = here.text.data + begin;
        doc.n_bytes = static_cast<size_t>(end - begin);
        __builtin_prefetch(doc.text);
    }
}

bool by_id(const Tied& a, const Tied& b) {
    return std::lexicographical_compare(a.text, a.text + a.n_bytes, b.text, b.text + b.n_bytes);
}

}  // namespace

std::vector<Hit> best_and_ties(std::vector<Hit> hits, size_t k) {
    if (k == 0) return {};
    std::vector<uint64_t> keys;
    keys.reserve(hits.size());
    for (const Hit& hit : hits) keys.push_back(key_of(hit));
    if (!std::is_sorted(keys.begin(), keys.end(), std::greater<uint64_t>())) sort_descending(keys);
    size_t n = std::min(k, keys.size());
    while (n < keys.size() && keys[n] >> 32 == keys[k - 1] >> 32) ++n;
    hits.clear();
    for (size_t i = 0; i < n; ++i) hits.push_back(hit_of(keys[i]));
    return hits;
}

template <typename Score>
std::vector<int64_t> order_of_ids(const FirstOrds& firsts, const std::vector<SegmentIds>& ids, Span<uint32_t> doc_ords,
                                  Span<Score> scores) {
    const auto ties = [&](size_t i, size_t j) { return j < doc_ords.size && scores[i] == scores[j]; };
    std::vector<int64_t> order(doc_ords.size);
    std::vector<Tied> tied;
    for (size_t i = 0; i < doc_ords.size; ++i) {
        order[i] = static_cast<int64_t>(i);
        if (!ties(i, i + 1) && (i == 0 || !ties(i - 1, i))) continue;
        const size_t segment = firsts.segment_of(doc_ords[i]);
        tied.push_back({order[i], segment, doc_ords[i] - firsts[segment]});
    }
    find_ids(ids, tied);
    for (auto first = tied.begin(), last = first; first != tied.end(); first = last) {
        const size_t begin = static_cast<size_t>(first->at);
        while (last != tied.end() && ties(begin, static_cast<size_t>(last->at))) ++last;
        std::sort(first, last, by_id);
        for (auto each = first; each != last; ++each) order[begin + static_cast<size_t>(each - first)] = each->at;
    }
    return order;
}

std::vector<Span<uint8_t>> texts_of(const FirstOrds& firsts, const std::vector<SegmentIds>& ids, Span<uint32_t> doc_ords) {
    std::vector<Tied> found;
    for (const uint32_t doc_ord : doc_ords) {
        const size_t segment = firsts.segment_of(doc_ord);
        found.push_back({0, segment, doc_ord - firsts[segment]});
    }
    find_ids(ids, found);
    std::vector<Span<uint8_t>> texts;
    for (const Tied& each : found) texts.push_back({each.text, each.n_bytes});
    return texts;
}

template std::vector<int64_t> order_of_ids(const FirstOrds&, const std::vector<SegmentIds>&, Span<uint32_t>, Span<float>);
template std::vector<int64_t> order_of_ids(const FirstOrds&, const std::vector<SegmentIds>&, Span<uint32_t>, Span<double>);

FirstOrds::FirstOrds(std::vector<uint32_t> firsts) : firsts_(std::move(firsts)) {
    if (firsts_.empty() || firsts_[0] != 0 || !std::is_sorted(firsts_.begin(), firsts_.end())) {
        throw InvalidInput("the segments' first doc_ords must start at 0 and never fall");
    }
}

size_t FirstOrds::segment_of(uint32_t doc_ord) const {
    if (doc_ord >= firsts_.back()) {
        throw InvalidInput("doc_ord " + std::to_string(doc_ord) + " is outside the " + std::to_string(firsts_.back()) +
                           " documents");
    }
    return static_cast<size_t>(std::upper_bound(firsts_.begin(), firsts_.end(), doc_ord) - firsts_.begin()) - 1;
}

template <typename Use>
void FirstOrds::each(Span<uint32_t> doc_ords, const Use& use) const {
    std::vector<std::vector<uint32_t>> places(n_segments()), at(n_segments());
    for (size_t i = 0; i < doc_ords.size; ++i) {
        const uint32_t doc_ord = doc_ords[i];
        const size_t segment = segment_of(doc_ord);
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
    std::optional<Terms> kept;  // the segment's terms; without places the terms of all segments
    firsts_.each(doc_ords, [&](size_t segment, const std::vector<uint32_t>& places, const std::vector<uint32_t>& at) {
        found.assign(places.size(), 0.0f);
        const SparseSegment& here = segments_[segment];
        if (here.there) {
            if (!kept || query_.places.data != nullptr) kept.emplace(terms_of(query_, segment));
            const Terms& terms = *kept;
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
    k = std::min<size_t>(k, firsts[segments.size()]);
    constexpr float lowest = -std::numeric_limits<float>::infinity();
    std::vector<KthBest> best(n_queries, KthBest(k, lowest));
    std::vector<float> floors(n_queries, lowest);
    for (size_t s = 0; s < segments.size(); ++s) {
        const DenseSegment& here = segments[s];
        if (!here.there) continue;
        const auto lists = dense_top_k(here.rows, queries, n_queries, dim, std::min(k, here.rows.n_rows), n_threads,
                                       allowed[s], here.sketches, floors.data());
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

struct SegmentsSearch::State {
    const FirstOrds& firsts;
    const std::vector<SparseSegment>& segments;
    SegmentedQuery query;
    Saturation saturation;
    size_t k;
    std::vector<SegmentList> lists;
    std::unique_ptr<SparseSearch> exact;  // null if stored scores are bounds
    std::vector<Hit> found;

    std::vector<Hit> by_bounds();
};

SegmentsSearch::SegmentsSearch(const FirstOrds& firsts, const std::vector<SparseSegment>& segments,
                               const SegmentedQuery& query, const Saturation& saturation, size_t k,
                               const std::vector<Bitmap>& allowed, Watched* watched, size_t n_steps)
    : state_(new State{firsts, segments, query, saturation, k, {}, nullptr, {}}) {
    const size_t n_docs = firsts[segments.size()];
    state_->k = k = std::min(k, n_docs);
    std::vector<SegmentList>& lists = state_->lists;
    lists.reserve(segments.size());
    for (size_t s = 0; s < segments.size(); ++s) {
        const double part = static_cast<double>(firsts[s + 1] - firsts[s]) / std::max(1.0, static_cast<double>(n_docs));
        lists.emplace_back(segments[s], terms_of(query, s), firsts[s], saturation.mean, allowed[s],
                           static_cast<double>(k) * part);
    }
    if (!std::all_of(lists.begin(), lists.end(), [](const SegmentList& list) { return list.exact(); })) return;
    std::vector<SparsePart> parts;
    for (const SegmentList& list : lists) {
        if (list.matches()) parts.push_back(list.part());
    }
    state_->exact = std::make_unique<SparseSearch>(std::move(parts), n_docs, k, k == 0 ? nullptr : watched, n_steps);
}

SegmentsSearch::~SegmentsSearch() = default;

size_t SegmentsSearch::n_steps() const { return state_->exact != nullptr ? state_->exact->n_steps() : 1; }

void SegmentsSearch::step(size_t number) {
    if (state_->exact != nullptr) state_->exact->step(number);
    else state_->found = state_->by_bounds();
}

std::vector<Hit> SegmentsSearch::hits() {
    return state_->exact != nullptr ? state_->exact->hits() : std::move(state_->found);
}

std::vector<Hit> SegmentsSearch::State::by_bounds() {
    KthBest best_so_far(k, 0.0f);
    for (SegmentList& list : lists) {
        if (list.current()) list.ask(k, best_so_far.value());
        else list.ask(k + k / 8 + 16, 0.0);
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
            list.ask(4 * list.hits().size(), 0.0);
        }
        if (!lacking) return best;
    }
}

std::vector<Hit> segments_top_k(const FirstOrds& firsts, const std::vector<SparseSegment>& segments,
                                const SegmentedQuery& query, const Saturation& saturation, size_t k,
                                const std::vector<Bitmap>& allowed, Watched* watched, size_t n_threads) {
    SegmentsSearch search(firsts, segments, query, saturation, k, allowed, watched, n_threads);
    parallel_for(search.n_steps(), n_threads, [&](size_t number) { search.step(number); });
    return search.hits();
}

}  // namespace lightir
