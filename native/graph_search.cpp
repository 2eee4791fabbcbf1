#include "graph_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "graph_walk.hpp"
#include "parallel.hpp"

namespace lightir {
namespace {

size_t count_allowed(Bitmap allowed, size_t n) {
    if (allowed.bits == nullptr) return n;
    size_t count = 0;
    for (size_t i = 0; i < n / 8; ++i) count += static_cast<size_t>(__builtin_popcount(allowed.bits[i]));
    for (size_t i = n / 8 * 8; i < n; ++i) count += allowed(i);
    return count;
}

// A search of all segments for the k best documents, for any number of queries.
class GraphSearch {
public:
    GraphSearch(const FirstOrds& firsts, const std::vector<DenseSegment>& segments, const WalkCosts& costs, size_t k,
                const std::vector<Bitmap>& allowed)
        : firsts_(firsts), segments_(segments), costs_(costs), k_(k), allowed_(allowed) {
        size_t total = 0;
        for (size_t s = 0; s < segments.size(); ++s) {
            const size_t n_docs = firsts[s + 1] - firsts[s];
            n_allowed_.push_back(segments[s].there ? count_allowed(allowed[s], n_docs) : 0);
            total += n_allowed_.back();
        }
        for (const size_t n : n_allowed_) shares_.push_back(likely_share(n, total));
    }

    // Whether a segment's graph is asked at first.
    bool walks(size_t segment) const { return walks(segment, shares_[segment]); }

    // Whether a segment is scanned at first.
    bool scans(size_t segment) const { return n_allowed_[segment] > 0 && !walks(segment); }

    // Returns a query's best documents. scanned: those of the segments whose graphs are not asked.
    std::vector<Hit> top(const float* query, size_t dim, std::vector<Hit> scanned) const {
        GraphWalk walk(query, dim);
        std::vector<size_t> asked = shares_, lacking;
        std::vector<std::vector<Hit>> near(segments_.size());
        for (size_t s = 0; s < segments_.size(); ++s) {
            if (walks(s)) lacking.push_back(s);
        }
        while (!lacking.empty()) {
            for (const size_t s : lacking) {
                near[s] = walks(s, asked[s]) ? walked(walk, s, asked[s]) : std::vector<Hit>{};
                if (near[s].empty()) scan(s, query, dim, scanned);
            }
            const float kth = kth_score(near, scanned);
            const auto has_all = [&](size_t s) {
                return asked[s] >= k_ || near[s].size() < asked[s] || near[s][asked[s] - 1].score < kth;
            };
            lacking.erase(std::remove_if(lacking.begin(), lacking.end(), has_all), lacking.end());
            for (const size_t s : lacking) asked[s] = std::min(k_, 4 * asked[s]);
        }
        add_exact(near, {query, dim}, scanned);
        return best_and_ties(std::move(scanned), k_);
    }

private:
    // Returns how many of the k best a segment with n of all documents holds at most, if they are spread by chance.
    size_t likely_share(size_t n, size_t total) const {
        const double expected = static_cast<double>(k_) * static_cast<double>(n) / static_cast<double>(std::max<size_t>(total, 1));
        return std::min(k_, static_cast<size_t>(expected + 4.0 * std::sqrt(expected)) + 16);
    }

    // The number of nodes that a graph keeps when it is asked for n documents.
    size_t width(size_t segment, size_t n) const {
        const size_t kept = std::max(costs_.candidates, n + n / 4);
        return std::max<size_t>(1, kept * segments_[segment].graph->n_nodes() / std::max<size_t>(n_allowed_[segment], 1));
    }

    bool walks(size_t segment, size_t n) const {
        const DenseSegment& here = segments_[segment];
        return here.there && here.graph != nullptr && n_allowed_[segment] > 0 &&
               width(segment, n) < here.graph->n_nodes() / std::max<size_t>(costs_.rows_a_candidate, 1);
    }

    // Returns the allowed documents near the query, by approximate scores; none if they are fewer than n.
    std::vector<Hit> walked(GraphWalk& walk, size_t segment, size_t n) const {
        std::vector<Hit> hits = walk.nearest(*segments_[segment].graph, width(segment, n));
        const Bitmap allowed = allowed_[segment];
        const auto is_refused = [allowed](const Hit& hit) { return !allowed(hit.doc_ord); };
        hits.erase(std::remove_if(hits.begin(), hits.end(), is_refused), hits.end());
        if (hits.size() < std::min(n, n_allowed_[segment])) return {};
        for (Hit& hit : hits) hit.doc_ord += firsts_[segment];
        return hits;
    }

    void scan(size_t segment, const float* query, size_t dim, std::vector<Hit>& found) const {
        const DenseSegment& here = segments_[segment];
        const auto lists = dense_top_k(here.rows, query, 1, dim, std::min(k_, here.rows.n_rows), 1, allowed_[segment],
                                       here.sketches);
        for (const Hit& hit : lists[0]) found.push_back({hit.doc_ord + firsts_[segment], hit.score});
    }

    // Returns the k-th best score so far, or minus infinity.
    float kth_score(const std::vector<std::vector<Hit>>& near, const std::vector<Hit>& scanned) const {
        std::vector<float> scores;
        for (const std::vector<Hit>& hits : near) {
            for (const Hit& hit : hits) scores.push_back(hit.score);
        }
        for (const Hit& hit : scanned) scores.push_back(hit.score);
        if (scores.size() < k_ || k_ == 0) return -std::numeric_limits<float>::infinity();
        const auto by_bits = [](float a, float b) { return ordered_bits(a) > ordered_bits(b); };
        const auto kth = scores.begin() + static_cast<std::ptrdiff_t>(k_ - 1);
        std::nth_element(scores.begin(), kth, scores.end(), by_bits);
        return *kth;
    }

    // Adds the best candidates with their exact scores.
    void add_exact(const std::vector<std::vector<Hit>>& near, Span<float> query, std::vector<Hit>& found) const {
        std::vector<uint64_t> keys;
        for (const std::vector<Hit>& hits : near) {
            for (const Hit& hit : hits) keys.push_back(key_of(hit));
        }
        sort_descending(keys);
        keys.resize(std::min(keys.size(), 4 * std::max(costs_.candidates, k_)));
        std::vector<uint32_t> doc_ords;
        for (const uint64_t key : keys) doc_ords.push_back(hit_of(key).doc_ord);
        std::vector<float> scores(doc_ords.size());
        DenseScorer(firsts_, segments_, query).score({doc_ords.data(), doc_ords.size()}, scores.data());
        for (size_t i = 0; i < scores.size(); ++i) found.push_back({doc_ords[i], scores[i]});
    }

    const FirstOrds& firsts_;
    const std::vector<DenseSegment>& segments_;
    const WalkCosts& costs_;
    size_t k_;
    const std::vector<Bitmap>& allowed_;
    std::vector<size_t> n_allowed_, shares_;
};

}  // namespace

std::vector<std::vector<Hit>> graphs_top_k(const FirstOrds& firsts, const std::vector<DenseSegment>& segments,
                                           const WalkCosts& costs, const float* queries, size_t n_queries, size_t dim,
                                           size_t k, size_t n_threads, const std::vector<Bitmap>& allowed) {
    k = std::min<size_t>(k, firsts[segments.size()]);
    const GraphSearch search(firsts, segments, costs, k, allowed);
    std::vector<DenseSegment> scanned = segments;
    bool any = false;
    for (size_t s = 0; s < segments.size(); ++s) any |= scanned[s].there = search.scans(s);
    std::vector<std::vector<Hit>> found(n_queries);
    if (any) found = segments_top_k(firsts, scanned, queries, n_queries, dim, k, n_threads, allowed);
    else check_finite(queries, n_queries, dim);
    parallel_for(n_queries, n_threads, [&](size_t query) {
        found[query] = search.top(queries + query * dim, dim, std::move(found[query]));
    });
    return found;
}

}  // namespace lightir
