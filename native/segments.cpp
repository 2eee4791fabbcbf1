#include "segments.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "dense.hpp"
#include "errors.hpp"

namespace lightir {

namespace {

using Term = std::pair<uint32_t, float>;

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

Terms terms_of(const SegmentedQuery& query, size_t segment) {
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
    return Terms(std::move(terms));
}

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
            const Terms terms = terms_of(query_, segment);
            if (here.bytes) score_segment(here.narrow, here.lengths, saturation_, places, terms, found.data());
            else score_segment(here.wide, here.lengths, saturation_, places, terms, found.data());
        }
        for (size_t i = 0; i < at.size(); ++i) scores[at[i]] = found[i];
    });
}

}  // namespace lightir
