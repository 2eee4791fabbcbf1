#include "sparse.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "dispatch.hpp"
#include "errors.hpp"
#include "parallel.hpp"

namespace lightir {
namespace {

size_t row_begin(Span<int64_t> indptr, size_t row, size_t total) {
    const int64_t begin = indptr[row], end = indptr[row + 1];
    if (begin < 0 || end < begin || static_cast<size_t>(end) > total) {
        throw InvalidInput("indptr must start at 0 and never fall; row " + std::to_string(row) + " spans " +
                           std::to_string(begin) + " to " + std::to_string(end) + " of " + std::to_string(total) +
                           " entries");
    }
    return static_cast<size_t>(begin);
}

template <typename W>
void check_rows(const SparseRows<W>& rows, size_t vocab_size) {
    for (size_t row = 0; row + 1 < rows.indptr.size; ++row) {
        const size_t begin = row_begin(rows.indptr, row, rows.term_ids.size);
        const size_t end = static_cast<size_t>(rows.indptr[row + 1]);
        for (size_t i = begin; i < end; ++i) {
            const uint32_t term = rows.term_ids[i];
            if (term >= vocab_size) {
                throw InvalidInput("term id " + std::to_string(term) + " is outside the vocabulary of " +
                                   std::to_string(vocab_size) + " (row " + std::to_string(row) + ")");
            }
            if (i > begin && term <= rows.term_ids[i - 1]) {
                throw InvalidInput("term ids must ascend within a row; in row " + std::to_string(row) + ", " +
                                   std::to_string(term) + " follows " + std::to_string(rows.term_ids[i - 1]));
            }
            if constexpr (std::is_same_v<W, float>) {
                if (!(rows.weights[i] >= 0.0f) || std::isinf(rows.weights[i])) {
                    throw InvalidInput("weights must be finite and not negative, not " +
                                       std::to_string(rows.weights[i]) + " (row " + std::to_string(row) + ")");
                }
            }
        }
    }
    if (rows.indptr[0] != 0 || static_cast<size_t>(rows.indptr[rows.indptr.size - 1]) != rows.term_ids.size) {
        throw InvalidInput("indptr must start at 0 and end at the number of term ids, " +
                           std::to_string(rows.term_ids.size));
    }
}

struct QueryTerm {
    uint32_t term_id;
    float weight;
};

std::vector<QueryTerm> sorted_query(const SparseQuery& query) {
    std::vector<QueryTerm> terms;
    terms.reserve(query.term_ids.size);
    for (size_t i = 0; i < query.term_ids.size; ++i) {
        if (!(query.weights[i] >= 0.0f) || std::isinf(query.weights[i])) {
            throw InvalidInput("query weights must be finite and not negative, not " +
                               std::to_string(query.weights[i]));
        }
        terms.push_back({query.term_ids[i], query.weights[i]});
    }
    const auto by_term = [](const QueryTerm& a, const QueryTerm& b) { return a.term_id < b.term_id; };
    if (!std::is_sorted(terms.begin(), terms.end(), by_term)) std::sort(terms.begin(), terms.end(), by_term);
    for (size_t i = 1; i < terms.size(); ++i) {
        if (terms[i].term_id == terms[i - 1].term_id) {
            throw InvalidInput("term id " + std::to_string(terms[i].term_id) +
                               " occurs twice in the query: add its weights first");
        }
    }
    return terms;
}

// A query term's runs, traversed block by block.
struct Cursor {
    size_t run, end_run;
    float weight;
};

// The remaining postings of a query term in one block.
struct Run {
    size_t next, end;
    float weight;
};

template <typename W>
std::pair<size_t, size_t> run_span(const PostingsView<W>& postings, size_t run) {
    const int64_t begin = postings.run_indptr[run], end = postings.run_indptr[run + 1];
    if (begin < 0 || end < begin || static_cast<size_t>(end) > postings.offsets.size) {
        throw DamagedArrays("postings are damaged: run " + std::to_string(run) + " points outside the postings");
    }
    return {static_cast<size_t>(begin), static_cast<size_t>(end)};
}

// Prefetches the head of a run; the hardware prefetcher loads the rest.
template <typename W>
void prefetch(const PostingsView<W>& postings, size_t posting) {
    __builtin_prefetch(postings.offsets.data + posting);
    __builtin_prefetch(postings.offsets.data + posting + 32);
    __builtin_prefetch(postings.weights.data + posting);
}

constexpr size_t runs_ahead = 2;

// Prefetches a run that is added soon. Its head was prefetched one block earlier, but with many terms the second-level
// cache cannot hold the data of a block until it is used.
template <bool reads_weights, typename W>
void fetch_run(const PostingsView<W>& postings, const Cursor& cursor) {
    constexpr size_t line = 64, most = 256;  // bytes, postings
    if (cursor.run == cursor.end_run) return;
    const auto [begin, end] = run_span(postings, cursor.run);
    const size_t last = std::min(end, begin + most);
    for (size_t i = begin; i < last; i += line / sizeof(uint16_t)) __builtin_prefetch(postings.offsets.data + i);
    for (size_t i = begin; reads_weights && i < last; i += line / sizeof(W)) __builtin_prefetch(postings.weights.data + i);
}

// Returns the position of a term among those that occur, or its insertion point. Term ids ascend strictly, so term t is at
// most at position t, and at least at t minus the number of terms that do not occur.
template <typename W>
size_t place_of(const PostingsView<W>& postings, uint32_t term_id) {
    const size_t n_terms = postings.term_ids.size;
    const size_t n_missing = postings.vocab_size > n_terms ? postings.vocab_size - n_terms : 0;
    const size_t last = std::min<size_t>(n_terms, size_t{term_id} + 1);
    const size_t first = std::min(last, term_id > n_missing ? term_id - n_missing : 0);
    const uint32_t* ids = postings.term_ids.begin();
    return static_cast<size_t>(std::lower_bound(ids + first, ids + last, term_id) - ids);
}

// Each step prefetches the memory of the next for all terms, so that their cache misses overlap.
template <typename W>
std::vector<Cursor> open_cursors(const PostingsView<W>& postings, const std::vector<QueryTerm>& query) {
    std::vector<Cursor> cursors;
    for (const QueryTerm& term : query) {
        if (term.term_id >= postings.vocab_size) {
            throw InvalidInput("term id " + std::to_string(term.term_id) + " is outside the vocabulary of " +
                               std::to_string(postings.vocab_size));
        }
        const size_t place = place_of(postings, term.term_id);
        if (place == postings.term_ids.size || postings.term_ids[place] != term.term_id) continue;
        __builtin_prefetch(postings.term_indptr.data + place);
        cursors.push_back({place, 0, term.weight});
    }
    for (Cursor& cursor : cursors) {
        const size_t place = cursor.run;
        const int64_t begin = postings.term_indptr[place], end = postings.term_indptr[place + 1];
        if (begin < 0 || end < begin || static_cast<size_t>(end) > postings.run_blocks.size) {
            throw DamagedArrays("postings are damaged: term id " + std::to_string(postings.term_ids[place]) +
                                " points outside the runs");
        }
        cursor.run = static_cast<size_t>(begin);
        cursor.end_run = static_cast<size_t>(end);
        __builtin_prefetch(postings.run_blocks.data + begin);
        for (size_t run = cursor.run; run < std::min(cursor.end_run + 1, cursor.run + 32); run += 8) {
            __builtin_prefetch(postings.run_indptr.data + run);
        }
    }
    for (const Cursor& cursor : cursors) {
        if (cursor.run < cursor.end_run) prefetch(postings, run_span(postings, cursor.run).first);
    }
    return cursors;
}

// Addition of a term's postings to the accumulators, by the types of both. Integer sums do not depend on their order and
// can be computed portion by portion; floats are added in the order of the terms, one block at a time.
template <typename Score, typename W>
struct Adding;

template <>
struct Adding<uint16_t, uint8_t> {
    static constexpr bool reads_weights = true;
    size_t operator()(uint16_t* scores, const uint16_t* offsets, const uint8_t* impacts, size_t n, Portion portion,
                      float weight) const {
        return level().add_u8_to_u16(scores, offsets, impacts, n, portion, weight);
    }
};

template <>
struct Adding<float, uint8_t> {
    static constexpr bool reads_weights = true;
    size_t operator()(float* scores, const uint16_t* offsets, const uint8_t* impacts, size_t n, Portion,
                      float weight) const {
        level().add_u8_to_f32(scores, offsets, impacts, n, weight);
        return n;
    }
};

template <>
struct Adding<float, float> {
    static constexpr bool reads_weights = true;
    size_t operator()(float* scores, const uint16_t* offsets, const float* weights, size_t n, Portion,
                      float weight) const {
        level().add_f32_to_f32(scores, offsets, weights, n, weight);
        return n;
    }
};

struct AddingParts {
    static constexpr bool reads_weights = true;
    size_t operator()(uint16_t* scores, const uint16_t* offsets, const uint8_t* impacts, size_t n, Portion portion,
                      float weight) const {
        return level().add_256ths_to_u16(scores, offsets, impacts, n, portion, static_cast<uint16_t>(weight));
    }
};

struct AddingSame {
    static constexpr bool reads_weights = false;
    size_t operator()(uint16_t* scores, const uint16_t* offsets, const uint8_t*, size_t n, Portion portion,
                      float weight) const {
        return level().add_same_to_u16(scores, offsets, n, portion, static_cast<uint16_t>(weight));
    }
};

size_t take_above(uint16_t* scores, size_t n, float threshold, uint32_t* positions, float* values) {
    const float most = std::min(threshold, 65535.0f);  // a floor may be higher than any sum
    return level().take_above_u16(scores, n, static_cast<uint16_t>(most), positions, values);
}

size_t take_above(float* scores, size_t n, float threshold, uint32_t* positions, float* values) {
    return level().take_above_f32(scores, n, threshold, positions, values);
}

// Guesses the final k-th best score from the documents seen so far, so that a large k does not collect nearly all matches.
// The number of documents seen doubles from one guess to the next.
class Guesses {
public:
    // first: doc_ord of the first document that is seen.
    Guesses(bool wanted, size_t k, size_t n_docs, size_t first = 0)
        : next_(wanted ? 1 : n_docs), k_(k), n_docs_(n_docs), first_(first) {}

    // Takes the doc_ord after the last document that was seen.
    void look(size_t end, TopK& best) {
        const size_t n_seen = end - first_;
        if (n_seen < next_ || 2 * n_seen > n_docs_) return;
        next_ = 2 * n_seen;
        // rank is the expected number of the k best among the documents seen, plus four standard deviations and 8.
        const double expected = static_cast<double>(k_) * static_cast<double>(n_seen) / static_cast<double>(n_docs_);
        const size_t rank = static_cast<size_t>(expected + 4.0 * std::sqrt(expected)) + 8;
        if (rank < k_) best.guess(rank);
    }

private:
    size_t next_, k_, n_docs_, first_;
};

// One block's accumulators and the results of a scan. Each thread keeps one object, with all accumulators 0 between queries.
template <typename Score>
struct Accumulators {
    static constexpr size_t least_chunk = 512, most_chunk = 4096;  // accumulators scanned per threshold
    alignas(64) Score scores[block_size];
    uint32_t positions[most_chunk];
    float values[most_chunk];

    // Stores the scores of watched documents of a portion; first: doc_ord of the block's first document.
    void note(size_t first, Portion portion, Watched& watched) const {
        const auto& ords = watched.doc_ords;
        auto ord = std::lower_bound(ords.begin(), ords.end(), first + portion.first);
        for (; ord != ords.end() && *ord < first + portion.end; ++ord) {
            watched.scores[static_cast<size_t>(ord - ords.begin())] = static_cast<float>(scores[*ord - first]);
        }
    }

    // Collects the scores above the threshold and clears the portion. first: doc_ord of the block's first document; first_doc:
    // its number in its segment of n_docs documents.
    void collect(size_t first, size_t first_doc, size_t n_docs, Portion portion, Bitmap allowed, TopK& best,
                 Guesses& guesses) {
        const size_t end = (portion.end + scan_width - 1) / scan_width * scan_width;
        for (size_t at = portion.first, size = 0; at < end; at += size) {
            size = std::min(std::clamp(first + at, least_chunk, most_chunk), end - at);
            const size_t n_found = take_above(scores + at, size, best.threshold(), positions, values);
            for (size_t i = 0; i < n_found; ++i) {
                const size_t doc = first_doc + at + positions[i];
                if (doc < n_docs && allowed(doc)) best.push(static_cast<uint32_t>(first + at + positions[i]), values[i]);
            }
            best.shrink();
            guesses.look(first + at + size, best);
        }
        // Damaged postings may have added to accumulators after the last document; clear them for the next query.
        if (first_doc + portion.end == n_docs) std::fill(scores + end, scores + block_size, Score{0});
    }
};

template <typename Score>
Accumulators<Score>& thread_accumulators() {
    static thread_local const std::unique_ptr<Accumulators<Score>> kept(new Accumulators<Score>());
    return *kept;
}

// Clears the accumulators if damaged postings abort a query, so that the thread's next query starts from 0.
template <typename Score>
struct CleanOnFailure {
    Accumulators<Score>& kept;
    bool done = false;
    ~CleanOnFailure() {
        if (!done) std::fill(std::begin(kept.scores), std::end(kept.scores), Score{0});
    }
};

// The request of a search: the k best above `lowest`, and those less than `slack` below the k-th.
struct Wanted {
    size_t k;
    Bitmap allowed;
    float lowest;
    float slack = 0.0f;
};

template <typename Score>
constexpr bool by_portions = std::is_integral_v<Score>;
template <typename Score>
constexpr size_t portion_size = by_portions<Score> ? 16384 : block_size;  // 32 KiB of a first-level cache
constexpr size_t long_run = 512;  // postings

// Adds a block's runs, except for long ones, which it puts into `left` to be added portion by portion. Returns whether the
// block has any runs.
template <typename Score, typename W, typename Add>
bool add_block(const PostingsView<W>& postings, std::vector<Cursor>& cursors, size_t block, Score* scores, const Add& add,
               std::vector<Run>& left) {
    bool any = false;
    left.clear();
    for (size_t i = 0; i < cursors.size(); ++i) {
        Cursor& cursor = cursors[i];
        if (cursor.run == cursor.end_run || postings.run_blocks[cursor.run] != block) continue;
        if (i + runs_ahead < cursors.size()) fetch_run<Add::reads_weights>(postings, cursors[i + runs_ahead]);
        const auto [begin, end] = run_span(postings, cursor.run++);
        prefetch(postings, end);  // the same term's run in the next block
        any = true;
        if (by_portions<Score> && end - begin >= long_run) {
            left.push_back({begin, end, cursor.weight});
        } else {
            const Portion whole{0, block_size};
            add(scores, postings.offsets.data + begin, postings.weights.data + begin, end - begin, whole, cursor.weight);
        }
    }
    return any;
}

// Adds the postings of a portion and keeps the runs that continue after it.
template <typename Score, typename W, typename Add>
void add_portion(const PostingsView<W>& postings, std::vector<Run>& left, Portion portion, Score* scores, const Add& add) {
    const auto is_done = [&](Run& run) {
        const size_t n = add(scores, postings.offsets.data + run.next, postings.weights.data + run.next,
                             run.end - run.next, portion, run.weight);
        if (n == not_ascending) throw DamagedArrays("postings are damaged: offsets do not ascend within a run");
        run.next += n;
        return run.next == run.end;
    };
    left.erase(std::remove_if(left.begin(), left.end(), is_done), left.end());
}

// Blocks of 65,536 documents.
struct Blocks {
    size_t begin = 0, end = std::numeric_limits<size_t>::max() / block_size;
};

// Adds all postings of a query in some blocks, block by block and portion by portion; first_ord: doc_ord of the segment's
// first document.
template <typename Score, typename W, typename Add>
void walk(const PostingsView<W>& postings, std::vector<Cursor> cursors, size_t first_ord, Bitmap allowed, const Add& add,
          TopK& best, Guesses& guesses, Watched* watched = nullptr, Blocks blocks = {}) {
    const auto block_of = [&](size_t run) { return postings.run_blocks.begin() + run; };
    for (Cursor& cursor : cursors) {
        if (blocks.begin == 0) break;
        const auto first = std::lower_bound(block_of(cursor.run), block_of(cursor.end_run), blocks.begin);
        cursor.run = static_cast<size_t>(first - block_of(0));
    }
    Accumulators<Score>& kept = thread_accumulators<Score>();
    CleanOnFailure<Score> guard{kept};
    std::vector<Run> left;
    const size_t end_doc = std::min(postings.n_docs, blocks.end * block_size);
    for (size_t first_doc = blocks.begin * block_size; first_doc < end_doc; first_doc += block_size) {
        if (!add_block(postings, cursors, first_doc / block_size, kept.scores, add, left)) continue;
        const size_t n = std::min(block_size, postings.n_docs - first_doc), first = first_ord + first_doc;
        for (Portion portion{0, 0}; portion.end < n; portion.first = portion.end) {
            portion.end = std::min(portion.first + portion_size<Score>, n);
            add_portion(postings, left, portion, kept.scores, add);
            if (watched != nullptr) kept.note(first, portion, *watched);
            kept.collect(first, first_doc, postings.n_docs, portion, allowed, best, guesses);
        }
    }
    guard.done = true;
}

// Whether k hits score above all guesses, so that no guess has excluded a hit.
bool complete(const std::vector<Hit>& hits, const TopK& best, size_t k, float lowest) {
    return best.guessed() <= lowest || (hits.size() >= k && hits[k - 1].score > best.guessed());
}

template <typename Score, typename W, typename Add = Adding<Score, W>>
std::vector<Hit> term_at_a_time(const PostingsView<W>& postings, const std::vector<Cursor>& query, const Wanted& wanted,
                                const Add& add = {}, bool with_guesses = true) {
    TopK best(wanted.k, wanted.lowest, wanted.slack);
    Guesses guesses(with_guesses, wanted.k, postings.n_docs);
    walk<Score>(postings, query, 0, wanted.allowed, add, best, guesses);
    std::vector<Hit> hits = best.finish();
    return complete(hits, best, wanted.k, wanted.lowest) ? hits
                                                         : term_at_a_time<Score>(postings, query, wanted, add, false);
}

// 16-bit sums hold every score when the weights are whole numbers and even all-255 impacts cannot pass 65,535.
bool fits_u16(const SparseQuery& query) {
    float most = 0.0f;
    for (const float weight : query.weights) {
        if (weight != std::floor(weight)) return false;
        most += 255.0f * weight;
        if (!(most <= 65535.0f)) return false;
    }
    return true;
}

}  // namespace

template <typename W>
OwnedPostings<W> invert(const SparseRows<W>& rows, size_t vocab_size, size_t n_docs) {
    check_rows(rows, vocab_size);
    const size_t n_blocks = (n_docs + block_size - 1) / block_size;
    const auto first_entry = [&](size_t doc) { return static_cast<size_t>(rows.indptr[std::min(doc, n_docs)]); };
    // The first pass counts postings and runs of each term, the second writes the postings by ascending document. A term has
    // a run in a block if its place has moved from its mark at the start of the block.
    std::vector<int64_t> place(vocab_size, 0), mark(vocab_size, 0), run(vocab_size, 0);
    for (size_t block = 0; block < n_blocks; ++block) {
        const size_t end = first_entry((block + 1) * block_size);
        for (size_t i = first_entry(block * block_size); i < end; ++i) ++place[rows.term_ids[i]];
        for (size_t term = 0; term < vocab_size; ++term) run[term] += place[term] != mark[term];
        mark = place;
    }
    OwnedPostings<W> out;
    out.term_indptr.push_back(0);
    int64_t next_posting = 0, next_run = 0;
    for (size_t term = 0; term < vocab_size; ++term) {  // turns counts into write positions
        const int64_t n_postings = std::exchange(place[term], next_posting);
        const int64_t n_runs = std::exchange(run[term], next_run);
        mark[term] = next_posting;
        if (n_postings == 0) continue;
        next_posting += n_postings;
        next_run += n_runs;
        out.term_ids.push_back(static_cast<uint32_t>(term));
        out.term_indptr.push_back(next_run);
    }
    out.run_blocks.resize(static_cast<size_t>(next_run));
    out.run_indptr.resize(static_cast<size_t>(next_run) + 1);
    out.run_indptr.back() = next_posting;
    out.offsets.resize(static_cast<size_t>(next_posting));
    out.weights.resize(static_cast<size_t>(next_posting));
    for (size_t block = 0; block < n_blocks; ++block) {
        for (size_t doc = block * block_size; doc < std::min(n_docs, (block + 1) * block_size); ++doc) {
            for (size_t i = first_entry(doc); i < first_entry(doc + 1); ++i) {
                const size_t ahead = static_cast<size_t>(place[rows.term_ids[std::min(i + 24, rows.term_ids.size - 1)]]);
                __builtin_prefetch(out.offsets.data() + ahead, 1);  // the write positions are scattered over all postings
                __builtin_prefetch(out.weights.data() + ahead, 1);
                const size_t at = static_cast<size_t>(place[rows.term_ids[i]]++);
                out.offsets[at] = static_cast<uint16_t>(doc % block_size);
                out.weights[at] = rows.weights[i];
            }
        }
        for (size_t term = 0; term < vocab_size; ++term) {
            if (place[term] == mark[term]) continue;
            const size_t at = static_cast<size_t>(run[term]++);
            out.run_blocks[at] = static_cast<uint32_t>(block);
            out.run_indptr[at] = std::exchange(mark[term], place[term]);
        }
    }
    return out;
}

template <typename W>
std::vector<Hit> sparse_top_k(const PostingsView<W>& postings, const SparseQuery& query, size_t k, Bitmap allowed,
                              float floor) {
    k = std::min(k, postings.n_docs);
    const float lowest = std::max(0.0f, just_below(floor));
    std::vector<Cursor> cursors = open_cursors(postings, sorted_query(query));
    if (k == 0 || cursors.empty()) return {};
    if constexpr (std::is_same_v<W, uint8_t>) {
        if (fits_u16(query)) return term_at_a_time<uint16_t>(postings, cursors, {k, allowed, lowest});
    }
    return term_at_a_time<float>(postings, cursors, {k, allowed, lowest});
}

namespace {

constexpr size_t postings_per_step = size_t{1} << 17;  // fewer take less time than a thread takes to start

// Blocks of one segment.
struct Piece {
    const SparsePart* part;
    Blocks blocks;
};

size_t n_docs_of(const SparsePart& part) { return part.narrow != nullptr ? part.narrow->n_docs : part.wide->n_docs; }

size_t n_postings_of(const SparsePart& part) {
    return part.narrow != nullptr ? n_postings(*part.narrow, part.query) : n_postings(*part.wide, part.query);
}

// Returns the pieces of each step, in the order of the documents: about as many blocks for one as for another.
std::vector<std::vector<Piece>> pieces_of(const std::vector<SparsePart>& parts, size_t n_steps) {
    const auto n_blocks = [](const SparsePart& part) { return (n_docs_of(part) + block_size - 1) / block_size; };
    size_t all_blocks = 0, all_postings = 0;
    for (const SparsePart& part : parts) all_blocks += n_blocks(part);
    for (const SparsePart& part : parts) all_postings += n_steps > 1 ? n_postings_of(part) : 0;
    n_steps = std::clamp(std::min(all_blocks, all_postings / postings_per_step), size_t{1}, n_steps);
    std::vector<std::vector<Piece>> out(n_steps);
    size_t block = 0;  // of all segments' blocks
    for (const SparsePart& part : parts) {
        for (size_t begin = 0, end = 0, n = n_blocks(part); begin < n; begin = end) {
            const size_t share = block * n_steps / all_blocks, next = ((share + 1) * all_blocks + n_steps - 1) / n_steps;
            end = std::min(n, begin + (next - block));
            out[share].push_back({&part, {begin, end}});
            block += end - begin;
        }
    }
    return out;
}

template <typename W>
void walk_piece(const PostingsView<W>& postings, const Piece& piece, TopK& best, Guesses& guesses, Watched* watched) {
    const SparsePart& part = *piece.part;
    const std::vector<Cursor> cursors = open_cursors(postings, sorted_query(part.query));
    if (cursors.empty()) return;
    if constexpr (std::is_same_v<W, uint8_t>) {
        if (fits_u16(part.query)) {
            walk<uint16_t>(postings, cursors, part.first_ord, part.allowed, Adding<uint16_t, W>{}, best, guesses,
                           watched, piece.blocks);
            return;
        }
    }
    walk<float>(postings, cursors, part.first_ord, part.allowed, Adding<float, W>{}, best, guesses, watched,
                piece.blocks);
}

// The doc_ord of a piece's first document.
uint32_t first_ord(const Piece& piece) {
    return piece.part->first_ord + static_cast<uint32_t>(piece.blocks.begin * block_size);
}

// The documents of some pieces that can be among the k best of all n_docs. begin: all documents before the pieces, from this
// one on, have none of the query's terms.
TopK walk_pieces(const std::vector<Piece>& pieces, size_t begin, size_t n_docs, size_t k, Watched* watched, bool with_guesses) {
    TopK best(k, 0.0f, 0.0f, true);
    Guesses guesses(with_guesses, k, n_docs, begin);
    for (const Piece& piece : pieces) {
        if (piece.part->narrow != nullptr) walk_piece(*piece.part->narrow, piece, best, guesses, watched);
        else walk_piece(*piece.part->wide, piece, best, guesses, watched);
        best.end_segment(first_ord(piece));
    }
    return best;
}

}  // namespace

struct SparseSearch::State {
    std::vector<SparsePart> parts;
    size_t n_docs, k;
    Watched* watched;
    std::vector<std::vector<Piece>> pieces;
    std::vector<TopK> found;

    void step(size_t number, bool with_guesses) {
        const std::vector<Piece>& some = pieces[number];
        const size_t begin = number == 0 || some.empty() ? 0 : first_ord(some[0]);
        found[number] = walk_pieces(some, begin, n_docs, k, watched, with_guesses);
    }
};

SparseSearch::SparseSearch(std::vector<SparsePart> parts, size_t n_docs, size_t k, Watched* watched, size_t n_steps)
    : state_(new State{std::move(parts), n_docs, std::min(k, n_docs), watched, {}, {}}) {
    if (watched != nullptr) watched->scores.assign(watched->doc_ords.size(), 0.0f);
    if (state_->k == 0) return;
    state_->pieces = pieces_of(state_->parts, n_steps);
    state_->found.assign(state_->pieces.size(), TopK(state_->k, 0.0f));
}

SparseSearch::~SparseSearch() = default;

size_t SparseSearch::n_steps() const { return state_->pieces.size(); }

void SparseSearch::step(size_t number) { state_->step(number, true); }

std::vector<Hit> SparseSearch::hits() {
    if (state_->found.empty()) return {};
    const auto joined = [this] {
        TopK& best = state_->found[0];
        for (size_t i = 1; i < state_->found.size(); ++i) best.append(state_->found[i]);
        return best;
    };
    TopK best = joined();
    std::vector<Hit> hits = best.finish();
    if (complete(hits, best, state_->k, 0.0f)) return hits;
    for (size_t i = 0; i < n_steps(); ++i) state_->step(i, false);
    return joined().finish();
}

std::vector<Hit> sparse_top_k(const std::vector<SparsePart>& parts, size_t n_docs, size_t k, Watched* watched,
                              size_t n_threads) {
    SparseSearch search(parts, n_docs, k, watched, n_threads);
    parallel_for(search.n_steps(), n_threads, [&](size_t number) { search.step(number); });
    return search.hits();
}

template <typename W>
size_t n_postings(const PostingsView<W>& postings, const SparseQuery& query) {
    size_t total = 0;
    for (const Cursor& cursor : open_cursors(postings, sorted_query(query))) {
        if (cursor.run == cursor.end_run) continue;
        const size_t begin = run_span(postings, cursor.run).first, end = run_span(postings, cursor.end_run - 1).second;
        total += end > begin ? end - begin : 0;
    }
    return total;
}

bool has_small_counts(const SparseQuery& query) { return fits_u16(query); }

namespace {

// Rounds weights to whole numbers of steps, at least 1, such that the sum over all terms stays below 65,536.
void round_weights(std::vector<QueryTerm>& terms, double step, CoarseTop& out) {
    for (QueryTerm& term : terms) {
        const double exact = static_cast<double>(term.weight) / step;
        const double rounded = std::max(1.0, std::round(exact));
        (rounded > exact ? out.over : out.under) += std::abs(rounded - exact);
        term.weight = static_cast<float>(rounded);
    }
}

}  // namespace

CoarseTop coarse_top_k(const PostingsView<uint8_t>& postings, const SparseQuery& query, size_t k, Bitmap allowed,
                       double floor, bool binary) {
    k = std::min(k, postings.n_docs);
    std::vector<QueryTerm> terms = sorted_query(query);
    const auto weighs_nothing = [](const QueryTerm& term) { return term.weight == 0.0f; };
    terms.erase(std::remove_if(terms.begin(), terms.end(), weighs_nothing), terms.end());
    CoarseTop out;
    if (k == 0 || terms.empty()) return out;
    double total = 0.0;
    for (const QueryTerm& term : terms) total += static_cast<double>(term.weight);
    const bool narrow = terms.size() <= most_narrow_terms;
    double largest = 255.0 * total;
    if (narrow) {
        const double n_terms = static_cast<double>(terms.size());
        largest = 65535.0;
        const double step = total / (largest - n_terms);
        out.unit = binary ? step : 256.0 * step;
        out.over = binary ? 0.0 : n_terms;  // products are rounded up
        round_weights(terms, step, out);
    }
    const double slack = out.over + out.under + largest * 2.0 * float_rounding;
    const double reached = floor / (out.unit * (1.0 + float_rounding)) - out.under;
    const float lowest = std::max(0.0f, just_below(static_cast<float>(reached * (1.0 - float_rounding))));
    const std::vector<Cursor> cursors = open_cursors(postings, terms);
    if (cursors.empty()) return out;
    const Wanted wanted{k, allowed, lowest, static_cast<float>(slack * (1.0 + float_rounding))};
    if (!narrow) out.hits = term_at_a_time<float>(postings, cursors, wanted);
    else if (binary) out.hits = term_at_a_time<uint16_t>(postings, cursors, wanted, AddingSame{});
    else out.hits = term_at_a_time<uint16_t>(postings, cursors, wanted, AddingParts{});
    out.left_out = out.hits.size() < k ? lowest : std::max(lowest, out.hits[k - 1].score - wanted.slack);
    return out;
}

#define LIGHTIR_INSTANTIATE(W)                                              \
    template OwnedPostings<W> invert(const SparseRows<W>&, size_t, size_t); \
    template size_t n_postings(const PostingsView<W>&, const SparseQuery&);  \
    template std::vector<Hit> sparse_top_k(const PostingsView<W>&, const SparseQuery&, size_t, Bitmap, float);
LIGHTIR_INSTANTIATE(uint8_t)
LIGHTIR_INSTANTIATE(float)
#undef LIGHTIR_INSTANTIATE

}  // namespace lightir
