// Tests of the kernel under sanitizers: every function at every level, at sizes around the vector widths, on exactly sized
// heap arrays, so that any access outside them fails.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "codes.hpp"
#include "dense.hpp"
#include "dispatch.hpp"
#include "errors.hpp"
#include "expect.hpp"
#include "parallel.hpp"
#include "selection.hpp"
#include "sparse.hpp"

using namespace lightir;

namespace {

template <typename W>
PostingsView<W> view(const OwnedPostings<W>& p, size_t vocab_size, size_t n_docs) {
    return {vocab_size,         n_docs,          span(p.term_ids), span(p.term_indptr), span(p.run_blocks),
            span(p.run_indptr), span(p.offsets), span(p.weights)};
}

// The inner product of each row with a query; terms are added in ascending order.
template <typename W>
std::vector<float> plain_scores(const SparseRows<W>& rows, const SparseQuery& query) {
    std::map<uint32_t, float> weights;
    for (size_t i = 0; i < query.term_ids.size; ++i) weights[query.term_ids[i]] = query.weights[i];
    std::vector<float> scores(rows.indptr.size - 1, 0.0f);
    for (size_t doc = 0; doc < scores.size(); ++doc) {
        for (int64_t entry = rows.indptr[doc]; entry < rows.indptr[doc + 1]; ++entry) {
            const auto weight = weights.find(rows.term_ids[static_cast<size_t>(entry)]);
            if (weight != weights.end()) {
                scores[doc] += weight->second * static_cast<float>(rows.weights[static_cast<size_t>(entry)]);
            }
        }
    }
    return scores;
}

template <typename W>
void sparse_search_finds_the_largest_inner_products(size_t n_docs, size_t k) {
    constexpr uint32_t vocab_size = 40;
    std::mt19937 random(static_cast<unsigned>(n_docs));
    std::vector<int64_t> indptr{0};
    std::vector<uint32_t> term_ids;
    std::vector<W> weights;
    for (size_t doc = 0; doc < n_docs; ++doc) {
        for (uint32_t term = random() % 8; term < vocab_size; term += 1 + random() % 20) {
            term_ids.push_back(term);
            weights.push_back(static_cast<W>(1 + random() % 3));
        }
        indptr.push_back(static_cast<int64_t>(term_ids.size()));
    }
    const SparseRows<W> rows{span(indptr), span(term_ids), span(weights)};
    const OwnedPostings<W> postings = invert(rows, vocab_size, n_docs);
    const std::vector<uint32_t> query_terms{7, 3, 39};
    for (const float weight : {1.0f, 0.3f}) {
        const std::vector<float> query_weights(3, weight);
        const SparseQuery query{span(query_terms), span(query_weights)};
        const std::vector<Hit> hits = sparse_top_k(view(postings, vocab_size, n_docs), query, k, Bitmap{});
        const std::vector<float> scores = plain_scores(rows, query);
        size_t n_matching = 0;
        for (const float score : scores) n_matching += score > 0.0f;
        expect(hits.size() == std::min(k, n_matching), "number of sparse hits");
        for (size_t i = 0; i < hits.size(); ++i) {
            expect(scores[hits[i].doc_ord] == hits[i].score, "a hit's score is its inner product");
            expect(i == 0 || hits[i - 1].score > hits[i].score ||
                       (hits[i - 1].score == hits[i].score && hits[i - 1].doc_ord < hits[i].doc_ord),
                   "hits stand in the total order");
        }
    }
}

// Three segments of several blocks each; few different scores, so that many documents tie.
void several_threads_find_what_one_finds(size_t k) {
    constexpr size_t sizes[] = {150000, 1000, 300000};
    constexpr uint32_t vocab_size = 3;
    std::mt19937 random(7);
    std::vector<OwnedPostings<uint8_t>> kept;
    std::vector<std::vector<float>> scores;
    const std::vector<uint32_t> query_terms{0, 1, 2};
    const std::vector<float> query_weights{1.0f, 2.0f, 1.0f};
    const SparseQuery query{span(query_terms), span(query_weights)};
    size_t n_docs = 0;
    for (const size_t n : sizes) {
        std::vector<int64_t> indptr{0};
        std::vector<uint32_t> term_ids;
        std::vector<uint8_t> weights;
        for (size_t doc = 0; doc < n; ++doc) {
            for (uint32_t term = 0; term < vocab_size; ++term) {
                if (random() % 4 == 0) continue;
                term_ids.push_back(term);
                weights.push_back(static_cast<uint8_t>(1 + std::min<unsigned>(random() % 40, random() % 40)));
            }
            indptr.push_back(static_cast<int64_t>(term_ids.size()));
        }
        const SparseRows<uint8_t> rows{span(indptr), span(term_ids), span(weights)};
        kept.push_back(invert(rows, vocab_size, n));
        scores.push_back(plain_scores(rows, query));
        n_docs += n;
    }
    std::vector<PostingsView<uint8_t>> views;
    for (size_t s = 0; s < 3; ++s) views.push_back(view(kept[s], vocab_size, sizes[s]));
    std::vector<SparsePart> parts;
    std::vector<float> every;
    for (size_t s = 0; s < 3; ++s) {
        parts.push_back({&views[s], nullptr, query, Bitmap{}, static_cast<uint32_t>(every.size())});
        every.insert(every.end(), scores[s].begin(), scores[s].end());
    }
    const std::vector<Hit> expected = sparse_top_k(parts, n_docs, k);
    for (const size_t n_threads : {2u, 3u, 7u}) {
        Watched watched{{0, 70000, 150000, 151500, 449999}, {}};
        const std::vector<Hit> hits = sparse_top_k(parts, n_docs, k, &watched, n_threads);
        expect(hits.size() >= expected.size() && expected.size() >= std::min(k, n_docs), "k hits and ties");
        for (size_t i = 0; i < hits.size(); ++i) {
            expect(hits[i].score == every[hits[i].doc_ord], "the score of a hit");
            if (i < k) expect(hits[i].doc_ord == expected[i].doc_ord, "the hits of one thread");
            else expect(hits[i].score == expected[k - 1].score, "only ties besides");
        }
        for (size_t i = 0; i < 5; ++i) expect(watched.scores[i] == every[watched.doc_ords[i]], "a watched score");
    }
}

void coarse_sums_bound_the_inner_products(size_t n_docs, size_t k, bool binary) {
    constexpr uint32_t vocab_size = 40;
    std::mt19937 random(static_cast<unsigned>(n_docs));
    std::vector<int64_t> indptr{0};
    std::vector<uint32_t> term_ids;
    std::vector<uint8_t> weights;
    for (size_t doc = 0; doc < n_docs; ++doc) {
        for (uint32_t term = random() % 8; term < vocab_size; term += 1 + random() % 20) {
            term_ids.push_back(term);
            weights.push_back(static_cast<uint8_t>(binary ? 1 : random() % 256));
        }
        indptr.push_back(static_cast<int64_t>(term_ids.size()));
    }
    const SparseRows<uint8_t> rows{span(indptr), span(term_ids), span(weights)};
    const OwnedPostings<uint8_t> postings = invert(rows, vocab_size, n_docs);
    const std::vector<uint32_t> query_terms{7, 3, 39, 20};
    const std::vector<float> query_weights{0.3f, 17.0f, 0.0f, 1e-6f};
    const SparseQuery query{span(query_terms), span(query_weights)};
    const std::vector<float> scores = plain_scores(rows, query);
    const CoarseTop found = coarse_top_k(view(postings, vocab_size, n_docs), query, k, Bitmap{}, 0.0, binary);
    size_t n_matching = 0, n_best = 0;
    for (const float score : scores) n_matching += score > 0.0f;
    for (const Hit& hit : found.hits) {
        const double score = static_cast<double>(scores[hit.doc_ord]);
        expect(score >= found.unit * (hit.score - found.over) * (1 - float_rounding), "no score is below its bound");
        expect(score <= found.unit * (hit.score + found.under) * (1 + float_rounding), "no score is above its bound");
    }
    expect(found.hits.size() >= std::min(k, n_matching), "number of candidates");
    std::vector<float> ranked = scores;
    std::sort(ranked.begin(), ranked.end(), std::greater<float>());
    for (const Hit& hit : found.hits) n_best += k <= n_docs && k > 0 && scores[hit.doc_ord] >= ranked[k - 1];
    for (const float score : scores) n_best -= k <= n_docs && k > 0 && score > 0.0f && score >= ranked[k - 1];
    expect(k > n_matching || n_best == 0, "the best and all that tie with them are candidates");
}

// Adds a run of n postings of different documents, portion by portion, and compares with a plain loop.
void additions_are_those_of_a_plain_loop(size_t n, size_t portion_size) {
    std::mt19937 random(static_cast<unsigned>(n));
    std::vector<uint16_t> offsets, start(block_size);
    std::vector<uint8_t> impacts;
    for (size_t i = 0; i < n; ++i) {
        offsets.push_back(static_cast<uint16_t>(40 * i + random() % 40));
        impacts.push_back(static_cast<uint8_t>(random()));
    }
    for (uint16_t& score : start) score = static_cast<uint16_t>(random() % 1000);
    using Add = std::function<size_t(uint16_t*, const uint16_t*, const uint8_t*, size_t, Portion)>;
    const auto same = [&](const Add& add, const std::function<uint32_t(uint32_t)>& product) {
        std::vector<uint16_t> scores = start, expected = start;
        size_t next = 0;
        for (size_t first = 0; first < block_size; first += portion_size) {
            const size_t end = first + portion_size;
            next += add(scores.data(), offsets.data() + next, impacts.data() + next, n - next, {first, end});
            expect(next == n || offsets[next] >= end, "a portion's postings are added with it");
        }
        for (size_t i = 0; i < n; ++i) {
            expected[offsets[i]] = static_cast<uint16_t>(expected[offsets[i]] + product(impacts[i]));
        }
        return scores == expected;
    };
    for (const uint32_t weight : {1u, 3u, 200u}) {
        const auto times = [=](uint32_t impact) { return weight * impact; };
        const auto parts = [=](uint32_t impact) { return (weight * impact + 255) / 256; };
        const auto once = [=](uint32_t) { return weight; };
        const uint16_t whole = static_cast<uint16_t>(weight);
        const Add u8 = [=](uint16_t* to, const uint16_t* at, const uint8_t* read, size_t size, Portion portion) {
            return level().add_u8_to_u16(to, at, read, size, portion, whole);
        };
        const Add part = [=](uint16_t* to, const uint16_t* at, const uint8_t* read, size_t size, Portion portion) {
            return level().add_256ths_to_u16(to, at, read, size, portion, whole);
        };
        const Add equal = [=](uint16_t* to, const uint16_t* at, const uint8_t*, size_t size, Portion portion) {
            return level().add_same_to_u16(to, at, size, portion, whole);
        };
        expect(same(u8, times), "whole weights");
        expect(same(part, parts), "256ths");
        expect(same(equal, once), "the same for all");
    }
    std::vector<uint16_t> scores(block_size);
    for (size_t i = 0; i < n; ++i) {  // one posting is before its portion
        const uint16_t kept = std::exchange(offsets[i], uint16_t{4});
        const Portion portion{8, block_size};
        const size_t added = level().add_u8_to_u16(scores.data(), offsets.data(), impacts.data(), n, portion, 1.0f);
        expect(added == not_ascending, "a posting before its portion is told");
        offsets[i] = kept;
    }
}

void dense_functions_stay_inside_their_arrays(Element element, size_t n_rows, size_t width, size_t dim) {
    const std::vector<uint8_t> data(n_rows * width * element_bytes(element), 0);
    const std::vector<float> scales(n_rows, 1.0f);
    const Matrix rows{data.data(), n_rows, width, element, element == Element::int8 ? scales.data() : nullptr};
    const std::vector<float> queries(2 * dim, 1.0f);
    const auto hits = dense_top_k(rows, queries.data(), 2, dim, 5, 2, Bitmap{});
    expect(hits.size() == 2 && hits[1].size() == std::min<size_t>(5, n_rows), "number of dense hits");
    for (size_t i = 0; i < hits[1].size(); ++i) expect(hits[1][i].doc_ord == i, "equal scores stand by doc_ord");
    const std::vector<uint8_t> bytes(n_rows * width, 0);
    const Copies copies{{bytes.data(), n_rows, width, Element::int8, scales.data()}, scales.data()};
    const size_t n_columns = (width + 3) / 4;
    const std::vector<uint8_t> blocks((n_rows + coded_block - 1) / coded_block * n_columns * coded_block, 0);
    const std::vector<float> center(width, 1.0f);
    const std::vector<uint16_t> wide_errors(n_rows, 0x4974), ones(n_rows, 0x3f80);  // 1e6 and 1
    std::vector<uint8_t> made(blocks.size());
    std::vector<uint16_t> made_scales(n_rows), made_errors(n_rows);
    code_rows(rows, center.data(), made.data(), made_scales.data(), made_errors.data());
    const Codes own{made.data(), n_columns, made_scales.data(), made_errors.data(), center.data()};
    const auto coded = dense_top_k(rows, queries.data(), 2, dim, 5, 2, Bitmap{}, {{}, own});
    for (size_t q = 0; q < 2; ++q) expect(coded[q].size() == hits[q].size(), "codes change no number of hits");
    const Codes codes{blocks.data(), n_columns, ones.data(), wide_errors.data(), center.data()};
    const std::vector<float> floors{1.0f, -1.0f};
    const auto above = dense_top_k(rows, queries.data(), 2, dim, 5, 2, Bitmap{}, {copies, codes}, floors.data());
    expect(above[0].empty() && above[1].size() == hits[1].size(), "rows below the floor are left out");
}

// A row passes its codes if the sum of its numbers reaches the threshold. least: smallest number of a table.
void rows_pass_their_codes_by_the_sums_of_a_plain_loop(size_t n_rows, size_t n_columns, unsigned least) {
    if (level().codes_above == nullptr) return;
    std::mt19937 random(static_cast<unsigned>(n_rows + n_columns));
    std::vector<uint8_t> codes((n_rows + coded_block - 1) / coded_block * coded_block * n_columns), tables(n_columns * 32);
    for (uint8_t& byte : codes) byte = static_cast<uint8_t>(random());
    for (uint8_t& number : tables) number = static_cast<uint8_t>(least + random() % (128 - least));
    std::vector<float> sums(n_rows, 0.0f);
    for (size_t row = 0; row < n_rows; ++row) {
        for (size_t i = 0; i < n_columns; ++i) {
            const uint8_t byte = codes[row / coded_block * coded_block * n_columns + i * coded_block + row % coded_block];
            sums[row] += tables[i * 32 + byte % 16] + tables[i * 32 + 16 + byte / 16];
        }
    }
    const std::vector<uint16_t> ones(n_rows, 0x3f80), no_errors(n_rows, 0);
    const CodedRows rows{codes.data(), n_columns, ones.data(), no_errors.data()};
    const CodedQuery query{tables.data(), 0.0f, 1.0f, 0.0f, 0.0f};
    std::vector<uint32_t> positions(n_rows);
    for (const float threshold : sums) {
        std::vector<uint32_t> expected;
        for (size_t row = 0; row < n_rows; ++row) {
            if (sums[row] >= threshold) expected.push_back(static_cast<uint32_t>(row));
        }
        const size_t n_found = level().codes_above(rows, n_rows, query, threshold, positions.data());
        expect(std::vector<uint32_t>(positions.begin(), positions.begin() + static_cast<std::ptrdiff_t>(n_found)) == expected,
               "rows that pass their codes");
    }
}

void bad_input_is_refused() {
    const std::vector<int64_t> indptr{0, 1};
    const std::vector<uint32_t> term_ids{3};
    const std::vector<uint8_t> impacts{1};
    const SparseRows<uint8_t> rows{span(indptr), span(term_ids), span(impacts)};
    expect_throws<InvalidInput>([&] { invert(rows, 3, 1); }, "a term id outside the vocabulary");
    OwnedPostings<uint8_t> postings = invert(rows, 4, 1);
    postings.run_indptr.back() = 1000;
    const std::vector<float> weights{1.0f};
    expect_throws<DamagedArrays>([&] { sparse_top_k(view(postings, 4, 1), {span(term_ids), span(weights)}, 1, {}); },
                                 "postings that point outside themselves");
    expect_throws<InvalidInput>([] { use_level("none"); }, "an unknown level");
    expect_throws<InvalidInput>(
        [] { parallel_for(100, 3, [](size_t i) { if (i == 50) throw InvalidInput("50"); }); },
        "an exception in a thread reaches the caller");
}

// Scores with few distinct values, of one or both signs, all ties, and keys in the order of their documents or shuffled.
void selection_is_that_of_comparisons(size_t n, unsigned n_values, float offset, bool in_order) {
    std::mt19937 random(static_cast<unsigned>(n) + n_values);
    std::vector<uint64_t> keys;
    for (uint32_t doc = 0; doc < n; ++doc) {
        const float score = static_cast<float>(random() % n_values) * 0.25f - offset;
        keys.push_back(key_of({doc * 3, score == 0.0f && doc % 2 ? -0.0f : score}));
        const Hit hit = hit_of(keys.back());
        expect(hit.doc_ord == doc * 3 && hit.score == score, "a key holds its hit");
    }
    if (!in_order) std::shuffle(keys.begin(), keys.end(), random);
    std::vector<uint64_t> sorted = keys, ours = keys;
    std::sort(sorted.begin(), sorted.end(), std::greater<uint64_t>());
    sort_descending(ours);
    expect(ours == sorted, "keys in descending order");
    for (const size_t rank : {size_t{1}, n / 3 + 1, n - 1, n}) {
        if (rank >= 1 && rank <= n) expect(nth_largest(keys.data(), n, rank) == sorted[rank - 1], "the rank-th key");
    }
}

}  // namespace

int main() {
    for (const size_t n : {0u, 1u, 2u, 64u, 65u, 700u, 3000u}) {
        for (const unsigned n_values : {1u, 3u, 400u, 1u << 20}) {
            for (const float offset : {0.0f, 50.0f, 1e6f}) {
                selection_is_that_of_comparisons(n, n_values, offset, true);
                selection_is_that_of_comparisons(n, n_values, offset, false);
            }
        }
    }
    for (const size_t k : {10u, 5000u}) several_threads_find_what_one_finds(k);
    for (const std::string& name : available_levels()) {
        use_level(name);
        for (const size_t n_docs : {size_t{0}, size_t{1}, size_t{500}, block_size + 70}) {
            for (const size_t k : {size_t{0}, size_t{1}, size_t{100}, 2 * block_size}) {
                sparse_search_finds_the_largest_inner_products<uint8_t>(n_docs, k);
                sparse_search_finds_the_largest_inner_products<float>(n_docs, k);
                coarse_sums_bound_the_inner_products(n_docs, k, false);
                coarse_sums_bound_the_inner_products(n_docs, k, true);
            }
        }
        for (size_t n = 0; n < 150; ++n) additions_are_those_of_a_plain_loop(n, block_size);
        for (const size_t n : {1u, 64u, 65u, 700u, 1500u}) additions_are_those_of_a_plain_loop(n, 4096);
        for (const size_t n_rows : {1, 63, 64, 200}) {
            for (const size_t n_columns : {1, 2, 64, 257}) {
                for (const unsigned least : {0u, 126u}) rows_pass_their_codes_by_the_sums_of_a_plain_loop(n_rows, n_columns, least);
            }
        }
        for (const Element element : {Element::float16, Element::float32, Element::int8}) {
            for (const size_t n_rows : {0, 1, 255, 257}) {
                for (const size_t width : {1, 15, 16, 33, 130}) {
                    dense_functions_stay_inside_their_arrays(element, n_rows, width, width);
                    dense_functions_stay_inside_their_arrays(element, n_rows, width, (width + 1) / 2);
                }
            }
        }
        bad_input_is_refused();
    }
    return outcome();
}
