// Python bindings of query encoding. Texts are borrowed under the GIL; everything else runs without it.
#include "bind_query.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pair_index.hpp"
#include "python_arrays.hpp"
#include "python_record.hpp"
#include "python_texts.hpp"
#include "query.hpp"
#include "tokenizer.hpp"

namespace lightir {
namespace {

using Words = std::unordered_map<std::string, uint32_t>;

// Releases the GIL for the lifetime of this object, except for a few short texts: reacquiring it from another thread can
// take a thousand times as long as encoding them.
class ReleasedForMany {
public:
    explicit ReleasedForMany(const Texts& texts) {
        constexpr size_t few_bytes = 2048;
        size_t n_bytes = 0;
        for (const std::string_view text : texts.views) n_bytes += text.size();
        if (texts.views.size() > few_bytes / 64 || n_bytes > few_bytes) released_.emplace();
    }

private:
    std::optional<nb::gil_scoped_release> released_;
};

Split split_named(const std::string& name) {
    if (name == "gpt2") return Split::gpt2;
    if (name == "gpt2_digits") return Split::gpt2_digits;
    if (name == "llama3") return Split::llama3;
    if (name == "qwen2") return Split::qwen2;
    throw InvalidInput("split '" + name + "' is unknown");
}

ByteMap byte_map(const nb::bytes& bytes) {
    ByteMap map;
    if (bytes.size() != map.size()) throw InvalidInput("a byte map must have 256 entries");
    std::memcpy(map.data(), bytes.data(), map.size());
    return map;
}

void bind_byte_pair_tokenizer(Tokenizer* self, const std::string& split, const nb::bytes& bytes,
                              std::vector<std::string> literals, nb::handle byte_ids, nb::handle left, nb::handle right,
                              nb::handle merged, Words whole) {
    const Array ids(byte_ids, "byte_ids", 1), lefts(left, "left", 1), rights(right, "right", 1);
    const Array merges(merged, "merged", 1);
    auto model = std::make_unique<BytePairs>(ids.span<uint32_t>(), lefts.span<uint32_t>(), rights.span<uint32_t>(),
                                             merges.span<uint32_t>(), std::move(whole));
    new (self) Tokenizer(split_named(split), byte_map(bytes), std::move(literals), std::move(model));
}

void bind_word_piece_tokenizer(Tokenizer* self, const nb::bytes& bytes, Words first, Words further, uint32_t unknown,
                               size_t max_bytes) {
    auto model = std::make_unique<WordPieces>(std::move(first), std::move(further), unknown, max_bytes);
    new (self) Tokenizer(Split::bert, byte_map(bytes), {}, std::move(model));
}

// Returns the ids of all texts. fallback(texts, positions) tokenizes the texts that the tokenizer refuses, or all texts if
// there is no tokenizer.
TokenLists read_texts(const Tokenizer* tokenizer, const Texts& texts, const TextPolicy& policy, size_t n_threads,
                      const nb::callable& fallback) {
    TokenLists lists;
    if (tokenizer != nullptr) {
        const ReleasedForMany released(texts);
        lists = tokenizer->tokenize(texts.views, policy, n_threads);
    } else {
        lists.indptr.assign(texts.views.size() + 1, 0);
        lists.refused.resize(texts.views.size());
        std::iota(lists.refused.begin(), lists.refused.end(), size_t{0});
    }
    if (lists.refused.empty()) return lists;
    const nb::tuple read = nb::cast<nb::tuple>(fallback(texts.kept(), nb::cast(lists.refused)));
    const Array ids(read[0], "term_ids", 1), indptr(read[1], "indptr", 1);
    check_indptr(indptr.span<int64_t>(), ids.size(), "indptr");
    fill_refused(lists, ids.span<uint32_t>(), indptr.span<int64_t>());
    return lists;
}

TextPolicy make_policy(bool strip, bool lower_case, bool leading_blank, size_t max_ids, nb::handle drop) {
    const Array dropped(drop, "drop", 1);
    const Span<uint32_t> ids = dropped.span<uint32_t>();
    TextPolicy policy{strip, lower_case, leading_blank, max_ids, {ids.begin(), ids.end()}};
    std::sort(policy.drop.begin(), policy.drop.end());
    return policy;
}

nb::tuple bind_tokenize(const Tokenizer& tokenizer, nb::handle texts, const TextPolicy& policy, size_t n_threads,
                        const nb::callable& fallback) {
    TokenLists lists = read_texts(&tokenizer, Texts(texts), policy, n_threads, fallback);
    return nb::make_tuple(to_numpy(std::move(lists.ids)), to_numpy(std::move(lists.indptr)));
}

using Vectors = nb::ndarray<float, nb::ndim<2>, nb::c_contig>;

void check_ids(Span<uint32_t> ids, size_t n_rows) {
    for (const uint32_t id : ids) {
        if (id >= n_rows) {
            throw InvalidInput("term id " + std::to_string(id) + " is outside the vocabulary of " +
                               std::to_string(n_rows));
        }
    }
}

void bind_mean_rows(nb::handle table, nb::handle scales, nb::handle token_ids, nb::handle indptr, bool normalize,
                    size_t n_threads, Vectors out) {
    const Rows rows(table, scales, "table", true);
    const Array ids(token_ids, "token_ids", 1), pointers(indptr, "indptr", 1);
    const Span<uint32_t> tokens = ids.span<uint32_t>();
    const Span<int64_t> offsets = pointers.span<int64_t>();
    check_indptr(offsets, tokens.size, "indptr");
    rows.check_dim(out.shape(1));
    same_length("indptr and out + 1", offsets.size, out.shape(0) + 1);
    nb::gil_scoped_release released;
    check_ids(tokens, rows.matrix.n_rows);
    mean_rows(rows.matrix, tokens, offsets, out.shape(1), normalize, n_threads, out.data());
}

// The borrowed arrays of dense queries.
class DenseArrays {
public:
    // pairs: (pairs (n, 2) uint32, rows, scales) or None. gate: (keys, values) or None.
    DenseArrays(nb::handle table, nb::handle scales, nb::handle pairs, nb::handle gate) : table_(table, scales, "table", true) {
        what.terms = table_.matrix;
        if (!pairs.is_none()) borrow_pairs(nb::cast<nb::tuple>(pairs));
        if (!gate.is_none()) borrow_gate(nb::cast<nb::tuple>(gate));
    }
    DenseArrays(const DenseArrays&) = delete;
    DenseArrays& operator=(const DenseArrays&) = delete;
    QueryRows what;

    void check_dim(size_t dim) const {
        table_.check_dim(dim);
        if (pair_rows_ != nullptr) pair_rows_->check_dim(dim);
    }

private:
    void borrow_pairs(const nb::tuple& arrays) {
        pairs_ = std::make_unique<Array>(arrays[0], "pairs", 2);
        pair_rows_ = std::make_unique<Rows>(arrays[1], arrays[2], "rows of pairs", true);
        same_length("columns of pairs and terms", pairs_->size(1), 2);
        same_length("pairs and their rows", pairs_->size(), pair_rows_->matrix.n_rows);
        index_ = std::make_unique<PairIndex>(pairs_->span<uint32_t>());
        found_ = {index_.get(), pair_rows_->matrix};
        what.pairs = &found_;
    }

    void borrow_gate(const nb::tuple& arrays) {
        keys_ = std::make_unique<Rows>(arrays[0], nb::none(), "keys");
        values_ = std::make_unique<Rows>(arrays[1], nb::none(), "values");
        const size_t n_rows = what.terms.n_rows + (index_ == nullptr ? 0 : index_->size());
        same_length("rows and keys", n_rows, keys_->matrix.n_rows);
        same_length("rows and values", n_rows, values_->matrix.n_rows);
        same_length("columns of keys and values", keys_->matrix.width, values_->matrix.width);
        if (n_rows > 0xffffffffu) throw InvalidInput("more than 4,294,967,295 rows");
        gate_ = {keys_->matrix, values_->matrix};
        what.gate = &gate_;
    }

    Rows table_;
    std::unique_ptr<Array> pairs_;
    std::unique_ptr<Rows> pair_rows_, keys_, values_;
    std::unique_ptr<PairIndex> index_;
    PairRows found_;
    Gate gate_;
};

// Encodes texts to query vectors: normalized sums of table rows, and counts of terms. Without a table there are no dense
// vectors, without a vocabulary no sparse ones. Keeps its arrays alive.
class QueryEncoder {
public:
    // dense: (table, scales, pairs, gate) as DenseArrays has them, or None. records: the classes Ragged, SparseVectors and
    // QueryVectors.
    QueryEncoder(nb::object tokenizer, const TextPolicy& policy, nb::object dense, size_t dim, nb::object vocab_size,
                 bool binary, nb::object factors, const nb::tuple& records)
        : tokenizer_(std::move(tokenizer)), policy_(policy), dense_(std::move(dense)), dim_(dim),
          vocab_size_(std::move(vocab_size)), factors_(std::move(factors)), ragged_(records[0]),
          sparse_vectors_(records[1]), query_vectors_(records[2]) {
        if (!tokenizer_.is_none()) native_ = &nb::cast<const Tokenizer&>(tokenizer_);
        if (!dense_.is_none()) {
            const nb::tuple arrays = nb::cast<nb::tuple>(dense_);
            rows_ = std::make_unique<DenseArrays>(arrays[0], arrays[1], arrays[2], arrays[3]);
            rows_->check_dim(dim_);
        }
        if (vocab_size_.is_none()) return;
        weighting_ = {nb::cast<size_t>(vocab_size_), binary, nullptr};
        if (factors_.is_none()) return;
        kept_factors_ = std::make_unique<Array>(factors_, "term weights", 1);
        same_length("term weights and vocabulary", kept_factors_->size(), weighting_.vocab_size);
        weighting_.factors = kept_factors_->span<float>().data;
    }

    // Returns one QueryVectors of all texts, with its dense rows in `out` if given.
    nb::object encode(nb::handle texts, size_t n_threads, const nb::callable& fallback, nb::object out) const {
        const Texts borrowed(texts);
        TokenLists lists = read_texts(native_, borrowed, policy_, n_threads, fallback);
        const Span<uint32_t> ids{lists.ids.data(), lists.ids.size()};
        const Span<int64_t> indptr{lists.indptr.data(), lists.indptr.size()};
        if (rows_ != nullptr) fetch_rows(rows_->what.terms, ids, dim_);
        nb::object dense = rows_ == nullptr ? nb::none() : rows_for(borrowed.views.size(), std::move(out));
        SparseQueries counts;
        {
            const ReleasedForMany released(borrowed);
            if (!vocab_size_.is_none()) counts = count_terms(ids, indptr, weighting_);
            if (rows_ != nullptr) encode_ids(ids, indptr, n_threads, static_cast<float*>(array_data(dense)));
        }
        const nb::object term_ids = ragged_(to_numpy(std::move(lists.ids)), to_numpy(std::move(lists.indptr)));
        if (vocab_size_.is_none()) return query_vectors_(term_ids, dense, nb::none());
        return query_vectors_(term_ids, dense,
                              sparse_vectors_(to_numpy(std::move(counts.indptr)), to_numpy(std::move(counts.term_ids)),
                                              to_numpy(std::move(counts.weights)), vocab_size_));
    }

    // Implements vectors_of_texts.
    TextVectors vectors(const nb::tuple& texts, size_t n_threads, const nb::callable& by_library,
                        std::optional<uint32_t> unknown) const {
        const Texts borrowed(texts);
        TokenLists lists = read_texts(native_, borrowed, policy_, n_threads, by_library);
        if (unknown) empty_unknown(lists, *unknown, by_library);
        const Span<uint32_t> ids{lists.ids.data(), lists.ids.size()};
        const Span<int64_t> indptr{lists.indptr.data(), lists.indptr.size()};
        const ReleasedForMany released(borrowed);
        TextVectors out{borrowed.views.size(), dim_, {}, {}};
        if (!vocab_size_.is_none()) out.sparse = count_terms(ids, indptr, weighting_);
        if (rows_ == nullptr) return out;
        out.dense.resize(out.n_texts * dim_);
        encode_ids(ids, indptr, n_threads, out.dense.data());
        return out;
    }

    // Writes the dense vectors of queries of given terms.
    void encode_terms(nb::handle term_ids, nb::handle indptr, size_t n_threads, Vectors out) const {
        const Array ids(term_ids, "term_ids", 1), pointers(indptr, "indptr", 1);
        const Span<int64_t> offsets = pointers.span<int64_t>();
        check_indptr(offsets, ids.size(), "indptr");
        if (rows_ == nullptr) throw InvalidInput("the query encoder makes no dense vectors");
        same_length("indptr and out + 1", offsets.size, out.shape(0) + 1);
        same_length("columns of out and of the encoder", out.shape(1), dim_);
        const Span<uint32_t> terms = ids.span<uint32_t>();
        nb::gil_scoped_release released;
        encode_ids(terms, offsets, n_threads, out.data());
    }

private:
    void encode_ids(Span<uint32_t> ids, Span<int64_t> indptr, size_t n_threads, float* out) const {
        check_ids(ids, rows_->what.terms.n_rows);
        encode_queries(rows_->what, ids, indptr, dim_, n_threads, out);
    }

    // Replaces the ids of texts with only the unknown term by those of the empty text.
    void empty_unknown(TokenLists& lists, uint32_t unknown, const nb::callable& by_library) const {
        const auto is_unknown = [&](size_t text) {
            const auto first = lists.ids.begin() + lists.indptr[text], last = lists.ids.begin() + lists.indptr[text + 1];
            return first != last && std::all_of(first, last, [&](uint32_t id) { return id == unknown; });
        };
        size_t n_unknown = 0;
        for (size_t text = 0; text + 1 < lists.indptr.size(); ++text) n_unknown += is_unknown(text);
        if (n_unknown == 0) return;
        const TokenLists empty = read_texts(native_, Texts(nb::make_tuple("")), policy_, 1, by_library);
        TokenLists out;
        out.indptr.assign(1, 0);
        for (size_t text = 0; text + 1 < lists.indptr.size(); ++text) {
            if (is_unknown(text)) out.ids.insert(out.ids.end(), empty.ids.begin(), empty.ids.end());
            else out.ids.insert(out.ids.end(), lists.ids.begin() + lists.indptr[text], lists.ids.begin() + lists.indptr[text + 1]);
            out.indptr.push_back(static_cast<int64_t>(out.ids.size()));
        }
        lists = std::move(out);
    }

    nb::object rows_for(size_t n_texts, nb::object out) const {
        if (out.is_none()) return new_array<float, 2>({n_texts, dim_});
        auto* array = reinterpret_cast<PyArrayObject*>(out.ptr());
        if (!PyArray_Check(out.ptr()) || PyArray_TYPE(array) != NPY_FLOAT32 || !PyArray_ISCARRAY(array) ||
            PyArray_NDIM(array) != 2 || PyArray_DIM(array, 0) != static_cast<npy_intp>(n_texts) ||
            PyArray_DIM(array, 1) != static_cast<npy_intp>(dim_)) {
            throw InvalidInput("out must be a writable C-contiguous float32 array of (" + std::to_string(n_texts) + ", " +
                               std::to_string(dim_) + ")");
        }
        return out;
    }

    nb::object tokenizer_;
    const Tokenizer* native_ = nullptr;
    TextPolicy policy_;
    nb::object dense_;
    size_t dim_;
    nb::object vocab_size_, factors_;
    std::unique_ptr<DenseArrays> rows_;
    std::unique_ptr<Array> kept_factors_;
    TermWeighting weighting_;
    Record ragged_, sparse_vectors_, query_vectors_;
};

}  // namespace

TextVectors vectors_of_texts(nb::handle encoder, const nb::tuple& texts, size_t n_threads,
                             const nb::callable& by_library, std::optional<uint32_t> unknown) {
    return nb::cast<const QueryEncoder&>(encoder).vectors(texts, n_threads, by_library, unknown);
}

void bind_query(nb::module_& m) {
    nb::class_<TextPolicy>(m, "TextPolicy")
        .def("__init__", [](TextPolicy* self, bool strip, bool lower_case, bool leading_blank, size_t max_ids,
                            nb::handle drop) {
            new (self) TextPolicy(make_policy(strip, lower_case, leading_blank, max_ids, drop));
        });
    nb::class_<Tokenizer>(m, "Tokenizer")
        .def("__init__", &bind_byte_pair_tokenizer)
        .def("__init__", &bind_word_piece_tokenizer)
        .def("tokenize", &bind_tokenize);
    nb::class_<QueryEncoder>(m, "QueryEncoder")
        .def(nb::init<nb::object, const TextPolicy&, nb::object, size_t, nb::object, bool, nb::object, const nb::tuple&>(),
             nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none(),
             nb::arg())
        .def("encode", &QueryEncoder::encode, nb::arg(), nb::arg(), nb::arg(), nb::arg().none())
        .def("encode_terms", &QueryEncoder::encode_terms, nb::arg(), nb::arg(), nb::arg(), nb::arg().noconvert());
    m.def("mean_rows", &bind_mean_rows, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
          nb::arg().noconvert());
}

}  // namespace lightir
