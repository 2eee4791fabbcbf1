// Tests of fusion under sanitizers against plain loops: segments without rows, lists of no and of all documents, exactly
// sized arrays.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "candidates.hpp"
#include "errors.hpp"
#include "expect.hpp"
#include "fusion.hpp"

using namespace lightir;

namespace {

// Two branches over three segments, of which the second has no rows.
struct Collection {
    std::vector<uint32_t> first_ords{0, 5, 9, 12};
    FirstOrds firsts{first_ords};
    std::vector<float> rows, query{1.0f, -1.0f};
    std::vector<std::vector<int64_t>> indptr{2};
    std::vector<std::vector<uint32_t>> term_ids{2}, lengths{2};
    std::vector<std::vector<uint8_t>> counts{2};
    std::vector<uint32_t> query_terms{0, 1, 2};
    std::vector<float> query_weights{1.0f, 2.0f, 0.5f};
    std::vector<int64_t> places{4, 5, 6, 0, 0, 0, 0, -1, 1};
    std::vector<DenseSegment> dense{3};
    std::vector<SparseSegment> sparse{3};

    explicit Collection(unsigned seed) {
        std::mt19937 random(seed);
        for (size_t i = 0; i < 24; ++i) rows.push_back(static_cast<float>(random() % 3));
        for (size_t part = 0; part < 2; ++part) {
            const size_t segment = 2 * part, n = first_ords[segment + 1] - first_ords[segment];
            Matrix matrix;
            matrix.data = rows.data() + 2 * first_ords[segment];
            matrix.n_rows = n;
            matrix.width = 2;
            dense[segment] = {true, matrix, {}};
            indptr[part].push_back(0);
            for (size_t doc = 0; doc < n; ++doc) {
                for (uint32_t term = 0; term < 8; ++term) {
                    if (random() % 2) continue;
                    term_ids[part].push_back(term);
                    counts[part].push_back(static_cast<uint8_t>(1 + random() % 2));
                }
                indptr[part].push_back(static_cast<int64_t>(term_ids[part].size()));
                lengths[part].push_back(3);
            }
            sparse[segment].there = sparse[segment].bytes = true;
            sparse[segment].narrow = {span(indptr[part]), span(term_ids[part]), span(counts[part])};
            sparse[segment].lengths = span(lengths[part]);
        }
    }
};

void the_best_are_in_order_and_scored(unsigned seed, size_t depth, size_t k, Scale scale, bool complete) {
    const Collection data(seed);
    const DenseScorer by_dense(data.firsts, data.dense, span(data.query));
    const SparseScorer by_terms(data.firsts, data.sparse,
                                {span(data.query_terms), span(data.query_weights), span(data.places), 3}, {0.9, 0.4, 2.0});
    std::vector<FusedBranch> branches;
    std::vector<std::unique_ptr<std::vector<uint32_t>>> ords;
    std::vector<std::unique_ptr<std::vector<float>>> scores;
    for (const Scorer* scorer : {static_cast<const Scorer*>(&by_dense), static_cast<const Scorer*>(&by_terms)}) {
        std::vector<uint32_t> every(12);
        for (uint32_t i = 0; i < 12; ++i) every[i] = i;
        std::vector<float> said(12);
        scorer->score(span(every), said.data());
        std::stable_sort(every.begin(), every.end(), [&](uint32_t a, uint32_t b) { return said[a] > said[b]; });
        ords.emplace_back(new std::vector<uint32_t>(every.begin(), every.begin() + static_cast<std::ptrdiff_t>(depth)));
        scores.emplace_back(new std::vector<float>());
        for (const uint32_t doc : *ords.back()) scores.back()->push_back(said[doc]);
        branches.push_back({span(*ords.back()), span(*scores.back()), scorer, 0.5, complete});
    }
    const FusedTop all = fuse(branches, {scale, 2.0, 12, false, true, {}});
    const FusedTop best = fuse(branches, {scale, 2.0, k, false, true, {}});
    const FusedTop tied = fuse(branches, {scale, 2.0, k, true, true, {}});
    expect(best.doc_ords.size() == std::min(k, all.doc_ords.size()), "k documents");
    for (size_t i = 0; i < all.doc_ords.size(); ++i) {
        const double sum = 0.5 * all.columns[0].normalized[i] + 0.5 * all.columns[1].normalized[i];
        expect(sum == all.scores[i], "the sum of its columns");
        if (i > 0) expect(all.scores[i] <= all.scores[i - 1], "score down");
        if (i < best.doc_ords.size()) expect(best.doc_ords[i] == all.doc_ords[i], "the best of all");
        const bool ties = k > 0 && k <= all.doc_ords.size() && all.scores[i] >= all.scores[k - 1];
        expect((i < tied.doc_ords.size()) == (ties || (k > all.doc_ords.size())), "the k-th one's ties");
    }
}

void the_best_of_all_segments_are_those_of_the_scores(unsigned seed, size_t k) {
    const Collection data(seed);
    std::vector<SparseSegment> plain = data.sparse;
    std::vector<OwnedPostings<uint8_t>> kept(3);
    for (const size_t s : {0u, 2u}) {
        plain[s].lengths = {};
        const size_t n = data.first_ords[s + 1] - data.first_ords[s];
        kept[s] = invert(plain[s].narrow, 8, n);
        plain[s].byte_postings = true;
        plain[s].narrow_postings = {8, n, span(kept[s].term_ids), span(kept[s].term_indptr), span(kept[s].run_blocks),
                                    span(kept[s].run_indptr), span(kept[s].offsets), span(kept[s].weights)};
    }
    const SegmentedQuery query{span(data.query_terms), span(data.query_weights), span(data.places), 3};
    const std::vector<Bitmap> allowed(3);
    std::vector<uint32_t> every(12);
    for (uint32_t i = 0; i < 12; ++i) every[i] = i;
    std::vector<float> said(12);
    SparseScorer(data.firsts, plain, query, {}).score(span(every), said.data());
    Watched watched{{0, 3, 5, 6, 9, 11}, {}};
    const std::vector<Hit> hits = segments_top_k(data.firsts, plain, query, {}, k, allowed, &watched);
    expect(watched.scores.size() == (k == 0 ? 0 : 6), "all of the watched or none");
    for (size_t i = 0; i < watched.scores.size(); ++i) {
        expect(watched.scores[i] == said[watched.doc_ords[i]], "a watched document's score");
    }
    const auto above = std::count_if(said.begin(), said.end(), [](float score) { return score > 0; });
    expect(hits.size() >= std::min(k, static_cast<size_t>(above)), "k documents of all segments");
    for (size_t i = 0; i < hits.size(); ++i) {
        expect(hits[i].score == said[hits[i].doc_ord], "a document's score");
        if (i > 0) expect(hits[i].score <= hits[i - 1].score, "score down");
    }
    const auto dense = segments_top_k(data.firsts, data.dense, data.query.data(), 1, 2, k, 1, allowed);
    DenseScorer(data.firsts, data.dense, span(data.query)).score(span(every), said.data());
    expect(dense[0].size() >= std::min<size_t>(k, 8), "k rows of all segments");
    for (const Hit& hit : dense[0]) expect(hit.score == said[hit.doc_ord], "a row's score");
}

// Queries whose lists hold all documents with a sufficient score.
class ByScorer : public BranchQueries {
public:
    explicit ByScorer(std::function<std::unique_ptr<Scorer>()> make) : make_(std::move(make)) {}

    std::vector<Hit> top(size_t, size_t n, Watched* watched) override {
        const auto by = make_();
        if (watched != nullptr && n % 2 == 1) {  // even n: no watched documents
            watched->scores.resize(watched->doc_ords.size());
            by->score(span(watched->doc_ords), watched->scores.data());
        }
        std::vector<uint32_t> every(12);
        for (uint32_t i = 0; i < 12; ++i) every[i] = i;
        std::vector<float> scores(12);
        by->score(span(every), scores.data());
        std::vector<Hit> hits;
        for (const uint32_t doc : every) hits.push_back({doc, scores[doc]});
        std::stable_sort(hits.begin(), hits.end(), [](const Hit& a, const Hit& b) { return a.score > b.score; });
        while (hits.size() > n && (n == 0 || hits.back().score < hits[n - 1].score)) hits.pop_back();
        return hits;
    }

    std::unique_ptr<Scorer> scorer(size_t) const override { return make_(); }
private:
    std::function<std::unique_ptr<Scorer>()> make_;
};

// lexical: the ranking of the last branch alone, at least as long as the depth or the whole one.
void pending_documents_keep_their_places(const FusedTop& found, const FusedTop& lexical, const CandidateOptions& how) {
    const size_t n_listed = std::min(how.depth, lexical.doc_ords.size());
    expect(found.columns.size() == 2, "a column for each branch");
    for (size_t i = 0; i < found.doc_ords.size(); ++i) {
        if (i > 0) expect(found.scores[i] <= found.scores[i - 1], "score down");
        const bool waits = is_pending(how.pending, found.doc_ords[i]);
        expect(waits == std::isnan(found.columns[0].normalized[i]), "no vector score of a pending document");
        if (i < n_listed && is_pending(how.pending, lexical.doc_ords[i])) {
            const auto end = found.doc_ords.begin() + static_cast<std::ptrdiff_t>(i) + 1;
            expect(std::count(found.doc_ords.begin(), end, lexical.doc_ords[i]) == 1, "its place or a better one");
        }
    }
}

// Fuses two branches in one call, with ids that descend while doc_ords ascend and without ids; three queries, the second
// with a greater depth.
void a_whole_search_is_its_lists_joined(unsigned seed, size_t depth, size_t k, Scale scale) {
    const Collection data(seed);
    ByScorer by_dense([&]() -> std::unique_ptr<Scorer> {
        return std::make_unique<DenseScorer>(data.firsts, data.dense, span(data.query));
    });
    ByScorer by_terms([&]() -> std::unique_ptr<Scorer> {
        const SegmentedQuery query{span(data.query_terms), span(data.query_weights), span(data.places), 3};
        return std::make_unique<SparseScorer>(data.firsts, data.sparse, query, Saturation{0.9, 0.4, 2.0});
    });
    std::vector<std::vector<uint8_t>> text{{'z', 'y', 'y', 'x', 'w', 'v'}, {'u', 't', 's', 'r'}, {'q', 'p', 'o'}};
    std::vector<std::vector<int64_t>> indptr{{0, 1, 3, 4, 5, 6}, {0, 1, 2, 3, 4}, {0, 1, 2, 3}};
    std::vector<SegmentIds> ids;
    for (size_t s = 0; s < 3; ++s) ids.push_back({span(text[s]), span(indptr[s])});
    CandidateOptions how;
    how.scale = scale, how.rrf_k = 2.0, how.k = k, how.depth = depth, how.n_threads = 2;
    const std::vector<SearchedBranch> branches{{&by_dense, 0.5, true}, {&by_terms, 0.3, true}};
    const std::vector<int64_t> spans{0, 0, 2, 2};
    const std::vector<uint32_t> excluded{3, 10};
    const std::vector<uint8_t> pending{1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    const std::vector<uint32_t> also{11, 0};
    for (const bool by_ids : {false, true}) {
        if (by_ids) how.firsts = &data.firsts, how.ids = &ids;
        const FusedTop found = search(branches, 1, how)[0];
        expect(found.doc_ords.size() <= k && found.columns.size() == 2, "k documents");
        for (size_t i = 0; i < found.doc_ords.size(); ++i) {
            const double sum = 0.5 * found.columns[0].normalized[i] + 0.3 * found.columns[1].normalized[i];
            expect(sum == found.scores[i], "the sum of its columns");
            if (i == 0) continue;
            const bool earlier = found.doc_ords[i - 1] < found.doc_ords[i];
            const bool ties = found.scores[i] == found.scores[i - 1];
            expect(found.scores[i] <= found.scores[i - 1] && (!ties || earlier != by_ids), "score down, then id up");
        }
        how.columns = false;
        const FusedTop bare = search(branches, 1, how)[0];
        expect(bare.columns.empty() && bare.doc_ords == found.doc_ords && bare.scores == found.scores, "without columns");
        how.columns = true;
        how.excluded_indptr = span(spans), how.excluded = span(excluded);
        const std::vector<FusedTop> three = search(branches, 3, how);
        expect(three[0].doc_ords == found.doc_ords && three[2].scores == found.scores, "a query as if it were alone");
        how.excluded_indptr = {}, how.excluded = {}, how.k = k + 2, how.depth = depth + 2;
        std::vector<uint32_t> others;
        const FusedTop deeper = search(branches, 1, how)[0];
        for (const uint32_t doc : deeper.doc_ords) {
            if (doc != 3 && doc != 10 && others.size() < k) others.push_back(doc);
        }
        expect(three[1].doc_ords == others, "a query without excluded documents");
        how.also = span(also), how.k = 50, how.depth = depth;
        const FusedTop with = search(branches, 1, how)[0];
        expect(std::count(with.doc_ords.begin(), with.doc_ords.end(), 11u) == 1, "a document that was named");
        how.also = {}, how.k = k;
        how.pending = span(pending), how.depth = depth;
        for (const bool fuses_last : {false, true}) {
            how.fuses_last = fuses_last;
            pending_documents_keep_their_places(search(branches, 1, how)[0], search({branches[1]}, 1, how)[0], how);
        }
        how.pending = {}, how.fuses_last = true;
    }
    const FusedTop alone = search({branches[0]}, 1, how)[0];
    expect(alone.doc_ords.size() == std::min<size_t>(k, 12) && alone.columns.size() == 1, "one branch gives k");
    const auto texts = texts_of(data.firsts, ids, span(alone.doc_ords));
    for (size_t i = 0; i < texts.size(); ++i) expect(texts[i].size == (alone.doc_ords[i] == 1 ? 2u : 1u), "a document's id");
}

// A branch whose list takes two steps, which end only when four steps have begun.
class InSteps : public ByScorer {
public:
    InSteps(std::function<std::unique_ptr<Scorer>()> make, std::atomic<size_t>& n_begun)
        : ByScorer(std::move(make)), n_begun_(n_begun) {}

    void prepare(size_t, size_t) override { is_prepared = true; }

    size_t begin(size_t k, size_t n_steps) override {
        expect(n_steps >= 2, "two steps a thread");
        depth_ = k;
        return 2;
    }

    void step(size_t number) override {
        ++n_begun_;
        const auto given_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (n_begun_ < 4 && std::chrono::steady_clock::now() < given_up) std::this_thread::yield();
        expect(n_begun_ == 4, "four steps at the same time");
        parts_[number] = ByScorer::top(0, depth_, nullptr);
    }

    std::vector<Hit> top(size_t query, size_t n, Watched* watched) override {
        if (depth_ == 0) return ByScorer::top(query, n, watched);
        expect(n == depth_ && parts_[0].size() == parts_[1].size(), "both steps are made before");
        return parts_[1];
    }

    bool is_prepared = false;

private:
    std::atomic<size_t>& n_begun_;
    size_t depth_ = 0;
    std::vector<Hit> parts_[2];
};

void branches_of_one_query_are_searched_at_the_same_time(unsigned seed, Scale scale) {
    const Collection data(seed);
    const auto dense = [&]() -> std::unique_ptr<Scorer> {
        return std::make_unique<DenseScorer>(data.firsts, data.dense, span(data.query));
    };
    const auto terms = [&]() -> std::unique_ptr<Scorer> {
        const SegmentedQuery query{span(data.query_terms), span(data.query_weights), span(data.places), 3};
        return std::make_unique<SparseScorer>(data.firsts, data.sparse, query, Saturation{0.9, 0.4, 2.0});
    };
    CandidateOptions how;
    how.scale = scale, how.rrf_k = 2.0, how.k = 6, how.depth = 5;
    ByScorer first(dense), second(terms), third(dense);
    const FusedTop expected = search({{&first, 0.5, true}, {&second, 0.3, true}, {&third, 0.2, true}}, 1, how)[0];
    how.n_threads = 4;
    std::atomic<size_t> n_begun{0};
    InSteps dense_steps(dense, n_begun), terms_steps(terms, n_begun);
    const FusedTop found = search({{&dense_steps, 0.5, true}, {&terms_steps, 0.3, true}, {&third, 0.2, true}}, 1, how)[0];
    expect(found.doc_ords == expected.doc_ords && found.scores == expected.scores, "as one after the other");
    expect(!dense_steps.is_prepared && !terms_steps.is_prepared, "what is begun is not prepared");
    // Several queries, one thread, and a branch that is not fused take no steps.
    const std::vector<uint8_t> pending(12, 0);
    for (const size_t n_threads : {1u, 4u}) {
        InSteps whole(terms, n_begun);
        how.n_threads = n_threads;
        search({{&first, 0.5, true}, {&whole, 0.2, true}}, n_threads == 1 ? 1 : 2, how);
        expect(whole.is_prepared, "no steps");
    }
    InSteps last(terms, n_begun);
    how.fuses_last = false, how.pending = span(pending);
    search({{&first, 0.5, true}, {&third, 0.3, true}, {&last, 0.2, true}}, 1, how);
    expect(last.is_prepared, "no steps of a branch that is not fused");
}

// A branch of words that counts its searches.
class Words : public ByScorer {
public:
    using ByScorer::ByScorer;

    std::vector<Hit> top(size_t query, size_t n, Watched* watched) override {
        ++n_searches;
        std::vector<Hit> hits = ByScorer::top(query, n, watched);
        while (!hits.empty() && hits.back().score <= 0.0f) hits.pop_back();
        return hits;
    }

    bool lists_by_score() const override { return true; }
    bool allows(uint32_t doc_ord) const override { return doc_ord != 1; }

    size_t n_searches = 0;
};

// Each document in turn is the only pending one, and is ranked as if the branch of words were always searched.
void places_are_searched_for_only_if_they_can_matter(unsigned seed, size_t k) {
    const Collection data(seed);
    ByScorer by_dense([&]() -> std::unique_ptr<Scorer> {
        return std::make_unique<DenseScorer>(data.firsts, data.dense, span(data.query));
    });
    const SegmentedQuery query{span(data.query_terms), span(data.query_weights), span(data.places), 3};
    const SparseScorer by_terms(data.firsts, data.sparse, query, {0.9, 0.4, 2.0});
    Words words([&]() -> std::unique_ptr<Scorer> { return std::make_unique<SparseScorer>(by_terms); });
    const std::vector<SearchedBranch> branches{{&by_dense, 0.5, true}, {&words, 0.3, true}};
    std::vector<float> scores(12);
    std::vector<uint32_t> every(12);
    for (uint32_t i = 0; i < 12; ++i) every[i] = i;
    by_terms.score(span(every), scores.data());
    for (const uint32_t doc : every) {
        if (doc == 1) continue;  // the filter of words does not admit it, but their list in this test does
        std::vector<uint8_t> flags(12, 0);
        flags[doc] = 1;
        CandidateOptions how;
        how.scale = Scale::max, how.k = k, how.depth = 12, how.pending = span(flags), how.fuses_last = false;
        const FusedTop expected = search(branches, 1, how)[0];
        const std::vector<uint32_t> pending{doc};
        how.few_pending = span(pending);
        words.n_searches = 0;
        const FusedTop found = search(branches, 1, how)[0];
        expect(found.doc_ords == expected.doc_ords && found.scores == expected.scores, "as if it had been searched");
        const auto better = [&](uint32_t other) { return other != 1 && scores[other] > scores[doc]; };
        const auto n_better = std::count_if(every.begin(), every.end(), better);
        const bool needed = k > 11 || (scores[doc] > 0.0f && static_cast<size_t>(n_better) < k);
        expect(words.n_searches == (needed ? 1u : 0u), "searched only if the pending document may have a place");
    }
}

constexpr Scale scales[] = {Scale::none,    Scale::max,  Scale::min_max,
                            Scale::z_score, Scale::dbsf, Scale::reciprocal, Scale::absolute};

}  // namespace

int main() {
    for (const unsigned seed : {1u, 2u, 3u}) {
        for (const Scale scale : scales) branches_of_one_query_are_searched_at_the_same_time(seed, scale);
        for (const size_t depth : {0u, 1u, 5u, 12u}) {
            for (const size_t k : {0u, 1u, 4u, 50u}) {
                for (const Scale scale : scales) {
                    for (const bool complete : {false, true}) {
                        the_best_are_in_order_and_scored(seed, depth, k, scale, complete);
                    }
                }
            }
        }
    }
    for (const size_t depth : {0u, 1u, 5u, 50u}) {
        for (const size_t k : {0u, 1u, 4u, 50u}) {
            for (const Scale scale : {Scale::none, Scale::max, Scale::min_max, Scale::reciprocal, Scale::absolute}) {
                a_whole_search_is_its_lists_joined(depth + 7, depth, k, scale);
            }
        }
    }
    for (const unsigned seed : {1u, 2u, 3u}) {
        for (const size_t k : {0u, 1u, 3u, 50u}) the_best_of_all_segments_are_those_of_the_scores(seed, k);
    }
    for (const unsigned seed : {1u, 2u, 3u}) {
        for (const size_t k : {0u, 1u, 3u, 11u, 12u}) places_are_searched_for_only_if_they_can_matter(seed, k);
    }
    return outcome();
}
