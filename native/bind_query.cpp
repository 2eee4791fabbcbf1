// Query encoding's border to Python: texts borrowed under the GIL, everything else done without it.
#include "bind_query.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "python_arrays.hpp"
#include "tokenizer.hpp"

namespace lightir {
namespace {

using Words = std::unordered_map<std::string, uint32_t>;

// The texts of a sequence as UTF-8, borrowed for as long as this lives; no data where an item is no such text.
class Texts {
public:
    explicit Texts(nb::handle texts) : kept_(nb::steal<nb::tuple>(PySequence_Tuple(texts.ptr()))) {
        if (!kept_.is_valid()) nb::raise_python_error();
        views.reserve(kept_.size());
        for (const nb::handle text : kept_) {
            Py_ssize_t size = 0;
            const char* data = PyUnicode_Check(text.ptr()) ? PyUnicode_AsUTF8AndSize(text.ptr(), &size) : nullptr;
            if (data == nullptr) PyErr_Clear();
            views.emplace_back(data, static_cast<size_t>(size));
        }
    }
    std::vector<std::string_view> views;

private:
    nb::tuple kept_;
};

Split split_named(const std::string& name) {
    if (name == "gpt2") return Split::gpt2;
    if (name == "gpt2_digits") return Split::gpt2_digits;
    if (name == "llama3") return Split::llama3;
    if (name == "qwen2") return Split::qwen2;
    throw InvalidInput("split '" + name + "' is not known");
}

ByteMap byte_map(const nb::bytes& bytes) {
    ByteMap map;
    if (bytes.size() != map.size()) throw InvalidInput("a byte map has 256 entries");
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

// The ids of all texts; those of texts that the tokenizer refuses come from fallback(positions).
TokenLists tokenize(const Tokenizer& tokenizer, const Texts& texts, const TextPolicy& policy, size_t n_threads,
                    const nb::callable& fallback) {
    TokenLists lists;
    {
        nb::gil_scoped_release released;
        lists = tokenizer.tokenize(texts.views, policy, n_threads);
    }
    if (lists.refused.empty()) return lists;
    const nb::tuple read = nb::cast<nb::tuple>(fallback(nb::cast(lists.refused)));
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
    TokenLists lists = tokenize(tokenizer, Texts(texts), policy, n_threads, fallback);
    return nb::make_tuple(to_numpy(std::move(lists.ids)), to_numpy(std::move(lists.indptr)));
}

}  // namespace

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
}

}  // namespace lightir
