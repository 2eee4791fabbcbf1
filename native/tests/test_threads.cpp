// Tests of threads, for the address and for the thread sanitizer: each function that uses several gives the result of one,
// also if the system starts fewer threads than asked for, or none.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "candidates.hpp"
#include "dense.hpp"
#include "dispatch.hpp"
#include "errors.hpp"
#include "expansions.hpp"
#include "expect.hpp"
#include "graph_builder.hpp"
#include "graph_bytes.hpp"
#include "graph_search.hpp"
#include "parallel.hpp"
#include "query.hpp"
#include "segments.hpp"
#include "sparse.hpp"
#include "tokenizer.hpp"

namespace {

constexpr int no_limit = 1 << 30;
std::atomic<int> n_allowed{no_limit};  // number of threads that may still be started
std::atomic<int> n_failed_starts{0};

}  // namespace

// Takes the place of the C library's function, and fails as that does at a limit of processes.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*), void* argument) {
    using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    static const Create create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
    if (n_allowed.fetch_sub(1) <= 0) {
        ++n_failed_starts;
        return EAGAIN;
    }
    return create(thread, attributes, work, argument);
}

using namespace lightir;

namespace {

using Bytes = std::vector<uint8_t>;

template <typename T>
void append(Bytes& out, const std::vector<T>& values) {
    const auto* data = reinterpret_cast<const uint8_t*>(values.data());
    out.insert(out.end(), data, data + values.size() * sizeof(T));
}

void append(Bytes& out, const std::vector<Hit>& hits) {
    for (const Hit& hit : hits) append(out, std::vector<float>{static_cast<float>(hit.doc_ord), hit.score});
}

// Documents and queries of every kind; large enough that work is divided.
struct Data {
    static constexpr size_t n_docs = 3000, width = 24, vocab_size = 50, n_queries = 300;
    std::vector<float> rows, queries;
    std::vector<int64_t> indptr{0}, query_indptr{0};
    std::vector<uint32_t> term_ids, query_terms, row_ids;
    std::vector<uint8_t> impacts;
    std::vector<float> query_weights;
    std::vector<std::string> texts;
    OwnedPostings<uint8_t> postings;

    Data() {
        std::mt19937 random(1);
        for (size_t i = 0; i < n_docs * width; ++i) rows.push_back(static_cast<float>(random() % 7) - 3.0f);
        for (size_t i = 0; i < n_queries * width; ++i) queries.push_back(static_cast<float>(random() % 5) - 2.0f);
        for (size_t doc = 0; doc < n_docs; ++doc) {
            for (uint32_t term = random() % 5; term < vocab_size; term += 1 + random() % 9) {
                term_ids.push_back(term);
                impacts.push_back(static_cast<uint8_t>(1 + random() % 4));
            }
            indptr.push_back(static_cast<int64_t>(term_ids.size()));
        }
        for (size_t query = 0; query < n_queries; ++query) {
            for (uint32_t term = random() % 9; term < vocab_size; term += 5 + random() % 9) {
                query_terms.push_back(term);
                query_weights.push_back(query % 2 == 0 ? 1.0f : 0.3f);
            }
            query_indptr.push_back(static_cast<int64_t>(query_terms.size()));
            for (size_t copy = 0; copy < 4; ++copy) {
                texts.push_back(std::string(1 + query % 40, static_cast<char>('a' + query % 3)) + " ab");
            }
        }
        for (size_t i = 0; i < vocab_size * 4; ++i) row_ids.push_back(random() % vocab_size);
        postings = invert(SparseRows<uint8_t>{span(indptr), span(term_ids), span(impacts)}, vocab_size, n_docs);
    }

    Matrix matrix() const {
        Matrix out;
        out.data = rows.data(), out.n_rows = n_docs, out.width = width;
        return out;
    }

    SparseSegment segment() const {
        SparseSegment out;
        out.there = out.bytes = out.byte_postings = true;
        out.narrow = {span(indptr), span(term_ids), span(impacts)};
        out.narrow_postings = {vocab_size,
                               n_docs,
                               span(postings.term_ids),
                               span(postings.term_indptr),
                               span(postings.run_blocks),
                               span(postings.run_indptr),
                               span(postings.offsets),
                               span(postings.weights)};
        return out;
    }
};

Bytes dense_search(const Data& data, size_t n_threads) {
    Bytes out;
    for (const size_t n_queries : {size_t{2}, data.n_queries}) {  // divides rows; divides queries
        for (const auto& hits : dense_top_k(data.matrix(), data.queries.data(), n_queries, data.width, 9, n_threads, {}, {})) {
            append(out, hits);
        }
    }
    return out;
}

// A branch's queries over the whole collection.
class Terms : public BranchQueries {
public:
    explicit Terms(const Data& data) : data_(data), segments_{data.segment()} {}
    std::vector<Hit> top(size_t query, size_t k, Watched* watched) override {
        if (search_ != nullptr) return search_->hits();
        return segments_top_k(firsts_, segments_, terms(query), {}, k, std::vector<Bitmap>(1), watched);
    }
    std::unique_ptr<Scorer> scorer(size_t query) const override {
        return std::make_unique<SparseScorer>(firsts_, segments_, terms(query), Saturation{});
    }
    size_t begin(size_t k, size_t n_steps) override {
        search_ = std::make_unique<SegmentsSearch>(firsts_, segments_, terms(0), Saturation{}, k, std::vector<Bitmap>(1),
                                                   nullptr, n_steps);
        return search_->n_steps();
    }
    void step(size_t number) override { search_->step(number); }

private:
    SegmentedQuery terms(size_t query) const {
        const auto first = static_cast<size_t>(data_.query_indptr[query]);
        const size_t n = static_cast<size_t>(data_.query_indptr[query + 1]) - first;
        return {{data_.query_terms.data() + first, n}, {data_.query_weights.data() + first, n}, {}, 0};
    }
    const Data& data_;
    FirstOrds firsts_{std::vector<uint32_t>{0, Data::n_docs}};
    std::vector<SparseSegment> segments_;
    std::unique_ptr<SegmentsSearch> search_;
};

class Rows : public BranchQueries {
public:
    explicit Rows(const Data& data) : data_(data), segments_{DenseSegment{true, data.matrix(), {}, nullptr}} {}
    void prepare(size_t k, size_t n_threads) override {
        lists_ = segments_top_k(firsts_, segments_, data_.queries.data(), data_.n_queries, data_.width, k, n_threads,
                                std::vector<Bitmap>(1));
    }
    std::vector<Hit> top(size_t query, size_t, Watched*) override { return lists_[query]; }
    size_t begin(size_t k, size_t) override { return depth_ = k, 1; }
    void step(size_t) override { prepare(depth_, 1); }
    std::unique_ptr<Scorer> scorer(size_t query) const override {
        return std::make_unique<DenseScorer>(firsts_, segments_,
                                             Span<float>{data_.queries.data() + query * data_.width, data_.width});
    }

private:
    const Data& data_;
    FirstOrds firsts_{std::vector<uint32_t>{0, Data::n_docs}};
    std::vector<DenseSegment> segments_;
    std::vector<std::vector<Hit>> lists_;
    size_t depth_ = 0;
};

Bytes whole_search(const Data& data, size_t n_threads) {
    Terms terms(data);
    Rows rows(data);
    CandidateOptions options;
    options.k = 7, options.depth = 20, options.n_threads = n_threads;
    Bytes out;
    for (const FusedTop& best : search({{&rows, 0.6, true}, {&terms, 0.4, true}}, data.n_queries, options)) {
        append(out, best.doc_ords), append(out, best.scores);
    }
    return out;
}

// The first query alone, whose four branches are searched at the same time.
Bytes search_of_one(const Data& data, size_t n_threads) {
    Terms terms(data), more_terms(data);
    Rows rows(data), more_rows(data);
    CandidateOptions options;
    options.k = 7, options.depth = 20, options.n_threads = n_threads;
    const std::vector<SearchedBranch> branches{
        {&rows, 0.4, true}, {&terms, 0.3, true}, {&more_rows, 0.2, true}, {&more_terms, 0.1, true}};
    const FusedTop best = search(branches, 1, options)[0];
    Bytes out;
    append(out, best.doc_ords), append(out, best.scores);
    return out;
}

// Every tenth vector is zero. The bytes are an array of exactly the size that the builder asks for.
Bytes graph_building(const Data& data, size_t n_threads) {
    const GraphShape shape{Element::int8, data.width, data.n_docs, 4};
    Bytes bytes(GraphBuilder::most_bytes(data.n_docs, shape));
    for (size_t i = 0; i < data.rows.size(); ++i) {
        const float value = i / data.width % 10 == 0 ? 0.0f : 20.0f * data.rows[i];
        bytes[graph_layout::matrix_head + i] = static_cast<uint8_t>(static_cast<int8_t>(value));
    }
    std::vector<uint32_t> rows(data.n_docs);
    std::iota(rows.begin(), rows.end(), 0u);
    GraphBuilder builder(bytes.data(), span(rows), shape, 16);
    while (builder.add(n_threads) > 0) {}
    bytes.resize(builder.n_bytes());
    const StoredGraph checked(span(bytes), shape);  // throws if a number is out of bounds
    return bytes;
}

Bytes graph_search(const Data& data, size_t n_threads) {
    static const GraphBytes stored = [] {
        std::vector<int16_t> levels(Data::n_docs, 0);
        levels[1000] = 1, levels[2000] = 2;
        return GraphBytes(levels, Data::width);
    }();
    const StoredGraph graph(span(stored.bytes), {Element::int8, data.width, data.n_docs, GraphBytes::above});
    const FirstOrds firsts({0, Data::n_docs, 2 * Data::n_docs});
    const std::vector<DenseSegment> segments{{true, data.matrix(), {}, &graph}, {true, data.matrix(), {}, nullptr}};
    Bytes out;
    for (const auto& hits : graphs_top_k(firsts, segments, {20, 1}, data.queries.data(), data.n_queries, data.width, 9,
                                         n_threads, std::vector<Bitmap>(2))) {
        append(out, hits);
    }
    return out;
}

Bytes query_encoding(const Data& data, size_t n_threads) {
    Bytes out;
    std::vector<float> means(data.n_queries * data.width);
    mean_rows(data.matrix(), span(data.query_terms), span(data.query_indptr), data.width, true, n_threads, means.data());
    append(out, means);
    const std::vector<float> weights(data.row_ids.size(), 0.5f);
    const Expansions expansions{data.row_ids.data(), weights.data(), Element::float32, data.vocab_size, 4};
    const SparseQueries sums =
        mean_expansions(expansions, span(data.query_terms), span(data.query_indptr), data.vocab_size, n_threads);
    append(out, sums.indptr), append(out, sums.term_ids), append(out, sums.weights);
    return out;
}

// The k best of one query over four blocks; documents that tie with the last are left out.
Bytes sparse_search(const Data&, size_t n_threads) {
    constexpr size_t n_docs = 4 * block_size, k = 50;
    static const std::vector<uint32_t> query_terms{0, 1};
    static const std::vector<float> query_weights{1.0f, 2.0f};
    static const OwnedPostings<uint8_t> kept = [] {
        std::mt19937 random(11);
        std::vector<int64_t> indptr{0};
        std::vector<uint32_t> term_ids;
        std::vector<uint8_t> weights;
        for (size_t doc = 0; doc < n_docs; ++doc) {
            for (const uint32_t term : query_terms) {
                term_ids.push_back(term);
                weights.push_back(static_cast<uint8_t>(1 + random() % 90));
            }
            indptr.push_back(static_cast<int64_t>(term_ids.size()));
        }
        return invert(SparseRows<uint8_t>{span(indptr), span(term_ids), span(weights)}, 2, n_docs);
    }();
    const PostingsView<uint8_t> view{2, n_docs, span(kept.term_ids), span(kept.term_indptr), span(kept.run_blocks),
                                     span(kept.run_indptr), span(kept.offsets), span(kept.weights)};
    const std::vector<SparsePart> parts{{&view, nullptr, {span(query_terms), span(query_weights)}, {}, 0}};
    std::vector<Hit> hits = sparse_top_k(parts, n_docs, k, nullptr, n_threads);
    hits.resize(k);
    Bytes out;
    append(out, hits);
    return out;
}

Bytes tokenization(const Data& data, size_t n_threads) {
    static const Tokenizer tokenizer = [] {
        ByteMap bytes;
        for (size_t c = 0; c < bytes.size(); ++c) bytes[c] = static_cast<uint8_t>(c < 0x80 ? c : byte_refused);
        std::vector<uint32_t> byte_ids(256);
        for (uint32_t c = 0; c < 256; ++c) byte_ids[c] = c;
        const std::vector<uint32_t> left{'a', 300}, right{'b', 300}, merged{300, 301};
        return Tokenizer(Split::gpt2, bytes, {},
                         std::make_unique<BytePairs>(span(byte_ids), span(left), span(right), span(merged),
                                                     std::unordered_map<std::string, uint32_t>{}));
    }();
    const std::vector<std::string_view> views(data.texts.begin(), data.texts.end());
    const TokenLists lists = tokenizer.tokenize(views, {}, n_threads);
    Bytes out;
    append(out, lists.ids), append(out, lists.indptr);
    return out;
}

const std::vector<std::pair<std::string, Bytes (*)(const Data&, size_t)>> functions{
    {"dense search", dense_search},
    {"building of a graph", graph_building},
    {"a search by graphs", graph_search},
    {"a search over two branches", whole_search},
    {"a search of one query over four branches", search_of_one},
    {"a sparse search", sparse_search},
    {"query encoding", query_encoding},
    {"tokenization", tokenization},
};

// At 0 none starts, at 1 and 2 some do, which then have to be joined.
void fewer_threads_give_the_same(const Data& data) {
    for (const auto& [name, function] : functions) {
        const Bytes alone = function(data, 1);
        expect(!alone.empty(), name + " gives a result");
        for (const int limit : {0, 1, 2, no_limit}) {
            n_allowed = limit;
            n_failed_starts = 0;
            const Bytes result = function(data, 4);
            n_allowed = no_limit;
            expect(result == alone, name + " with " + std::to_string(limit) + " threads");
            expect((n_failed_starts > 0) == (limit < 3), name + " asks for three more threads");
        }
    }
}

void a_failure_of_a_task_is_thrown_whatever_starts() {
    for (const int limit : {0, 1, no_limit}) {
        n_allowed = limit;
        std::atomic<int> n_done{0};
        expect_throws<InvalidInput>(
            [&] {
                parallel_for(50, 4, [&](size_t i) {
                    ++n_done;
                    if (i == 3) throw InvalidInput("task 3");
                });
            },
            "a task's exception");
        n_allowed = no_limit;
        expect(n_done >= 4, "the tasks before it are done");
    }
}

// Several callers use the same tokenizer, arrays and thread-local sums at a time.
void callers_do_not_disturb_each_other(const Data& data) {
    std::vector<Bytes> expected;
    for (const auto& one : functions) expected.push_back(one.second(data, 1));
    std::atomic<int> n_wrong{0};
    std::vector<std::thread> callers;
    for (size_t caller = 0; caller < 4; ++caller) {
        callers.emplace_back([&, caller] {
            for (size_t i = 0; i < functions.size(); ++i) {
                const size_t at = (i + caller) % functions.size();
                n_wrong += functions[at].second(data, 1 + caller % 2) != expected[at];
            }
        });
    }
    for (std::thread& caller : callers) caller.join();
    expect(n_wrong == 0, "callers at the same time");
}

}  // namespace

int main() {
    const Data data;
    fewer_threads_give_the_same(data);
    a_failure_of_a_task_is_thrown_whatever_starts();
    callers_do_not_disturb_each_other(data);
    return outcome();
}
