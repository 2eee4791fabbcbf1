// Tests of damaged and extreme numbers under sanitizers: every offset of every array that an index maps, every number of a
// graph, and the largest k. A search returns something or refuses; it stays inside its arrays.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "candidates.hpp"
#include "dense.hpp"
#include "dispatch.hpp"
#include "errors.hpp"
#include "expect.hpp"
#include "graph_bytes.hpp"
#include "graph_search.hpp"
#include "graph_walk.hpp"
#include "segments.hpp"
#include "sparse.hpp"

using namespace lightir;

namespace {

constexpr size_t n_docs = 40, vocab_size = 8;
constexpr int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
constexpr int64_t extremes[] = {least, least + 1, -1, 0, 1, 1'000, int64_t{1} << 32, most / 2, most - 1, most};

// Sparse documents of one segment with everything that a search reads. Document d has the terms d % 3 and 3 + d % 5.
struct Segment {
    std::vector<int64_t> indptr{0};
    std::vector<uint32_t> term_ids;
    std::vector<uint8_t> counts;
    std::vector<uint32_t> lengths;
    OwnedPostings<uint8_t> postings;
    std::vector<uint8_t> text;
    std::vector<int64_t> id_indptr{0};

    Segment() {
        for (uint32_t doc = 0; doc < n_docs; ++doc) {
            term_ids.insert(term_ids.end(), {doc % 3, 3 + doc % 5});
            counts.insert(counts.end(), {static_cast<uint8_t>(1 + doc % 2), 1});
            lengths.push_back(2 + doc % 2);
            indptr.push_back(static_cast<int64_t>(term_ids.size()));
            text.push_back(static_cast<uint8_t>('z' - doc % 20));
            id_indptr.push_back(static_cast<int64_t>(text.size()));
        }
        postings = invert(SparseRows<uint8_t>{span(indptr), span(term_ids), span(counts)}, vocab_size, n_docs);
    }

    PostingsView<uint8_t> view() const {
        return {vocab_size,
                n_docs,
                span(postings.term_ids),
                span(postings.term_indptr),
                span(postings.run_blocks),
                span(postings.run_indptr),
                span(postings.offsets),
                span(postings.weights)};
    }

    // mean: the length for which the postings are said to hold; 0 for impacts.
    SparseSegment segment(double mean) const {
        SparseSegment out;
        out.there = out.bytes = out.byte_postings = true;
        out.narrow = {span(indptr), span(term_ids), span(counts)};
        out.narrow_postings = view();
        if (mean != 0) out.lengths = span(lengths);
        out.mean = mean;
        return out;
    }
};

// Calls every search; returns the number of those that refused.
size_t n_refusals(const Segment& data, size_t k) {
    const std::vector<uint32_t> terms{0, 2, 3, 7};
    const std::vector<float> weights{1.0f, 0.7f, 3.0f, 0.1f};
    const SparseQuery query{span(terms), span(weights)};
    const PostingsView<uint8_t> view = data.view();
    const std::vector<SparsePart> parts{{&view, nullptr, query, {}, 0}};
    const FirstOrds firsts(std::vector<uint32_t>{0, n_docs});
    const std::vector<Bitmap> allowed(1);
    const SegmentedQuery segmented{span(terms), span(weights), {}, 0};
    std::vector<uint32_t> every(n_docs);
    for (uint32_t i = 0; i < n_docs; ++i) every[i] = n_docs - 1 - i;
    std::vector<float> scores(n_docs, 1.0f);
    const std::vector<SparseSegment> segments{data.segment(0.0)};  // which the scorer borrows
    const std::vector<SegmentIds> ids{{span(data.text), span(data.id_indptr)}};
    const std::vector<std::function<void()>> searches{
        [&] { sparse_top_k(data.view(), query, k, {}); },
        [&] { sparse_top_k(parts, n_docs, k); },
        [&] { coarse_top_k(data.view(), query, k, {}, 0.0, false); },
        [&] { coarse_top_k(data.view(), query, k, {}, 0.0, true); },
        [&] { n_postings(data.view(), query); },
        [&] { segments_top_k(firsts, {data.segment(0.0)}, segmented, {}, k, allowed); },
        [&] { segments_top_k(firsts, {data.segment(2.5)}, segmented, {0.9, 0.4, 3.0}, k, allowed); },
        [&] { SparseScorer(firsts, segments, segmented, {}).score(span(every), scores.data()); },
        [&] { order_of_ids(firsts, ids, span(every), span(scores)); },
        [&] { texts_of(firsts, ids, span(every)); },
    };
    size_t n = 0;
    for (const auto& search : searches) {
        try {
            search();
        } catch (const DamagedArrays&) {
            ++n;
        } catch (const InvalidInput&) {
            ++n;
        }
    }
    return n;
}

// Puts each extreme number at each place of an array, and before and after its neighbor.
void damaged_offsets_are_refused(const std::string& what, const std::function<std::vector<int64_t>&(Segment&)>& array) {
    size_t n = 0;
    Segment whole;
    const size_t size = array(whole).size();
    for (size_t at = 0; at < size; ++at) {
        for (const int64_t first : extremes) {
            for (const int64_t second : {least, int64_t{0}, most}) {
                Segment damaged;
                array(damaged)[at] = first;
                if (second != 0 && at + 1 < size) array(damaged)[at + 1] = second;
                n += n_refusals(damaged, 5);
            }
        }
    }
    expect(n > 0, what + ": some searches refuse");
    expect(n_refusals(Segment(), 5) == 0, what + ": nothing of the damage is left behind");
}

void damaged_ids_are_refused_or_unfound() {
    for (const uint32_t value : {0u, 7u, 8u, 0x7fffffffu, 0xffffffffu}) {
        for (size_t at = 0; at < 8; ++at) {
            Segment damaged;
            damaged.term_ids[at] = value;
            damaged.postings.term_ids[at] = value;
            damaged.postings.run_blocks[at] = value;
            damaged.postings.offsets[at] = static_cast<uint16_t>(value);
            n_refusals(damaged, 5);
        }
    }
    expect(n_refusals(Segment(), 5) == 0, "nothing of the damage is left behind");
}

void any_k_is_at_most_all_documents() {
    const Segment data;
    const std::vector<uint32_t> terms{0, 2, 3, 7};
    const std::vector<float> weights{1.0f, 0.7f, 3.0f, 0.1f}, rows(n_docs * 3, 1.0f);
    const SparseQuery query{span(terms), span(weights)};
    Matrix matrix;
    matrix.data = rows.data(), matrix.n_rows = n_docs, matrix.width = 3;
    const size_t n_matching = sparse_top_k(data.view(), query, n_docs, {}).size();
    const FirstOrds firsts(std::vector<uint32_t>{0, n_docs});
    const std::vector<Bitmap> allowed(1);
    const SegmentedQuery segmented{span(terms), span(weights), {}, 0};
    const auto half = size_t{1} << 63;
    for (const size_t k : {n_docs + 1, half - 257, half - 256, half - 1, half, SIZE_MAX - 512, SIZE_MAX}) {
        const std::string at = " at k = " + std::to_string(k);
        const PostingsView<uint8_t> view = data.view();
        const SparsePart part{&view, nullptr, query, {}, 0};
        expect(sparse_top_k(view, query, k, {}).size() == n_matching, "postings" + at);
        expect(sparse_top_k(std::vector<SparsePart>{part}, n_docs, k).size() == n_matching, "parts" + at);
        expect(coarse_top_k(view, query, k, {}, 0.0, false).hits.size() == n_matching, "coarse sums" + at);
        expect(segments_top_k(firsts, {data.segment(0.0)}, segmented, {}, k, allowed).size() == n_matching,
               "segments" + at);
        expect(segments_top_k(firsts, {data.segment(2.5)}, segmented, {0.9, 0.4, 3.0}, k, allowed).size() == n_matching,
               "segments with another mean" + at);
        expect(dense_top_k(matrix, rows.data(), 1, 3, k, 1, {}, {})[0].size() == n_docs, "rows" + at);
        expect(segments_top_k(firsts, {DenseSegment{true, matrix, {}}}, rows.data(), 1, 3, k, 1, allowed)[0].size() == n_docs,
               "segments of rows" + at);
        TopK best(k, 0.0f);
        for (uint32_t i = 0; i < 2000; ++i) {
            best.push(i, 1.0f);
            best.shrink();
        }
        expect(best.finish().size() == std::min<size_t>(k, 2000), "the best of a stream" + at);
    }
}

// A branch that lists its best of ten documents.
class Ten : public BranchQueries {
public:
    std::vector<Hit> top(size_t, size_t k, Watched*) override {
        std::vector<Hit> hits;
        for (uint32_t i = 0; i < std::min<size_t>(k, 10); ++i) hits.push_back({i, 10.0f - static_cast<float>(i)});
        return hits;
    }
    std::unique_ptr<Scorer> scorer(size_t) const override { return std::make_unique<None>(); }

private:
    struct None : Scorer {
        void score(Span<uint32_t> doc_ords, float* scores) const override { std::fill_n(scores, doc_ords.size, 0.0f); }
    };
};

void any_depth_is_at_most_all_documents() {
    Ten one, two;
    const std::vector<int64_t> indptr{0, 2};
    const std::vector<uint32_t> excluded{0, 99};  // which k and depth grow by
    for (const size_t n : {size_t{3}, (size_t{1} << 63) - 1, SIZE_MAX - 1, SIZE_MAX}) {
        CandidateOptions options;
        options.k = options.depth = n;
        for (const size_t wanted : {std::min<size_t>(n, 10), n == 3 ? size_t{3} : size_t{9}}) {
            expect(search({{&one, 1.0, true}}, 1, options)[0].doc_ords.size() == wanted, "one branch");
            expect(search({{&one, 1.0, true}, {&two, 1.0, true}}, 1, options)[0].doc_ords.size() == wanted, "two branches");
            options.excluded_indptr = span(indptr), options.excluded = span(excluded);
        }
    }
}

constexpr size_t graph_width = 4;

// Searches a graph of six rows: all links of all levels are followed, in arrays of exactly the graph's size.
void search_graph(const std::vector<uint8_t>& bytes, size_t n_rows = 6) {
    const StoredGraph graph(span(bytes), {Element::int8, graph_width, n_rows, GraphBytes::above});
    const std::vector<float> query{0.5f, -1.0f, 0.25f, 1.0f}, rows(n_rows * graph_width, 1.0f);
    for (const size_t width : {1, 3, 9}) {
        expect(GraphWalk(query.data(), query.size()).nearest(graph, width).size() <= width, "a walk keeps at most width");
    }
    const Matrix matrix{rows.data(), n_rows, graph_width, Element::float32, nullptr};
    const FirstOrds firsts({0, static_cast<uint32_t>(n_rows)});
    const auto lists = graphs_top_k(firsts, {{true, matrix, {}, &graph}}, {1, 1}, query.data(), 1, query.size(), 2, 1, {{}});
    expect(lists[0].size() >= 2, "a search finds k rows");
}

void damaged_graphs_are_refused() {
    const GraphBytes whole({0, 1, 0, 2, 0, 0}, graph_width);
    search_graph(whole.bytes);
    expect_throws<DamagedArrays>([&] { search_graph(whole.bytes, 5); }, "a row outside the rows");
    for (size_t size = 0; size < whole.bytes.size(); ++size) {
        const std::vector<uint8_t> cut(whole.bytes.begin(), whole.bytes.begin() + static_cast<std::ptrdiff_t>(size));
        expect_throws<DamagedArrays>([&] { search_graph(cut); }, "a graph that is cut");
    }
    std::vector<uint8_t> longer = whole.bytes;
    longer.push_back(0);
    expect_throws<DamagedArrays>([&] { search_graph(longer); }, "a graph with more bytes");
    size_t n_refused = 0;
    for (size_t at = 0; at < whole.bytes.size(); ++at) {
        for (const uint8_t value : {0x01, 0x05, 0x06, 0x7f, 0x80, 0xff}) {
            std::vector<uint8_t> damaged = whole.bytes;
            damaged[at] = value;
            try {
                search_graph(damaged);
            } catch (const DamagedArrays&) {
                ++n_refused;
            }
        }
    }
    expect(n_refused > whole.bytes.size(), "most numbers that are changed are refused");
}

}  // namespace

int main() {
    for (const std::string& name : available_levels()) {
        use_level(name);
        damaged_offsets_are_refused("rows", [](Segment& s) -> auto& { return s.indptr; });
        damaged_offsets_are_refused("terms", [](Segment& s) -> auto& { return s.postings.term_indptr; });
        damaged_offsets_are_refused("runs", [](Segment& s) -> auto& { return s.postings.run_indptr; });
        damaged_ids_are_refused_or_unfound();
        any_k_is_at_most_all_documents();
        damaged_graphs_are_refused();
    }
    // Damaged ids of documents are empty ones: a search goes on.
    for (const int64_t value : extremes) {
        Segment damaged;
        damaged.id_indptr[7] = value;
        expect(n_refusals(damaged, 5) == 0, "a damaged id is empty");
    }
    any_depth_is_at_most_all_documents();
    return outcome();
}
