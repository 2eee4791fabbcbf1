// Python bindings of words: those of texts, near ones, queries of known ones, and passages that have them.
#include "bind_words.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "known_words.hpp"
#include "near_terms.hpp"
#include "passages.hpp"
#include "python_arrays.hpp"
#include "python_texts.hpp"
#include "words.hpp"

namespace lightir {
namespace {

nb::str to_str(std::string_view text) { return nb::str(text.data(), text.size()); }

// Returns (distinct words, positions of the texts' words among them, indptr, positions of refused texts).
nb::tuple bind_split_words(nb::handle texts) {
    const Texts borrowed(texts);
    WordLists lists;
    {
        nb::gil_scoped_release released;
        lists = split_words(borrowed.views);
    }
    nb::list words;
    size_t begin = 0;
    for (const size_t end : lists.ends) {
        words.append(nb::str(lists.text.data() + begin, end - begin));
        begin = end;
    }
    return nb::make_tuple(words, to_numpy(std::move(lists.ids)), to_numpy(std::move(lists.indptr)),
                          nb::cast(lists.refused));
}

// Returns (positions, distances).
nb::tuple bind_near_terms(nb::handle text, nb::handle indptr, const std::string& word, size_t distance, bool prefix) {
    const Array bytes(text, "text", 1), starts(indptr, "indptr", 1);
    const SortedTerms terms{bytes.span<uint8_t>(), starts.span<int64_t>()};
    if (terms.indptr.size == 0) throw InvalidInput("indptr is empty");
    if (distance > 255) throw InvalidInput("distance is above 255");
    NearTerms near;
    {
        nb::gil_scoped_release released;
        near = near_terms(terms, word, distance, prefix);
    }
    return nb::make_tuple(to_numpy(std::move(near.positions)), to_numpy(std::move(near.distances)));
}

// A finder that threads share. Nobody waits for the GIL while holding the mutex, so waiting for it with the GIL is safe.
struct SharedFinder : PassageFinder {
    using PassageFinder::PassageFinder;
    std::mutex mutex;
};

void bind_learn_block(SharedFinder& self, uint32_t block, const nb::bytes& classes) {
    if (classes.size() != 256) throw InvalidInput("a block must have 256 classes");
    const std::lock_guard<std::mutex> lock(self.mutex);
    self.learn_block(block, static_cast<const uint8_t*>(classes.data()));
}

void bind_learn_words(SharedFinder& self, const nb::list& words, const std::vector<std::vector<std::string>>& terms) {
    const Texts borrowed(words);
    same_length("words and terms", borrowed.views.size(), terms.size());
    const std::lock_guard<std::mutex> lock(self.mutex);
    for (size_t i = 0; i < terms.size(); ++i) {
        if (borrowed.views[i].data() == nullptr) throw InvalidInput("a word is not valid text");
        self.learn_word(borrowed.views[i], terms[i]);
    }
}

// Returns (snippet, matches): the passage with an ellipsis where text is cut.
nb::tuple shown_passage(const Passage& passage) {
    static const std::string ellipsis = "\u2026";
    const size_t shift = passage.cut_before ? 1 : 0;
    const std::string text = (passage.cut_before ? ellipsis : "") + passage.text + (passage.cut_after ? ellipsis : "");
    nb::list matches;
    for (const auto& [start, end] : passage.matches) matches.append(nb::make_tuple(start + shift, end + shift));
    return nb::make_tuple(to_str(text), nb::tuple(matches));
}

// Returns ([(snippet, matches) or None for a text that is not valid], blocks, words). The list ends before the first text
// for which blocks or words have to be learned.
nb::tuple bind_find(SharedFinder& self, nb::handle texts, const std::vector<std::string>& wanted, size_t length,
                    size_t lead) {
    constexpr size_t many_bytes = 1 << 18;  // less is searched sooner than another thread would return the GIL
    if (length > 0x7fffffffu || lead > 0x7fffffffu) throw InvalidInput("a passage of more than 2,147,483,647 characters");
    const Texts borrowed(texts);
    std::vector<Passage> passages;
    Missing missing;
    size_t n_bytes = 0;
    for (const std::string_view text : borrowed.views) n_bytes += text.size();
    {
        std::optional<nb::gil_scoped_release> released;
        if (n_bytes > many_bytes) released.emplace();
        const std::lock_guard<std::mutex> lock(self.mutex);
        self.want(wanted, {length, lead});
        for (const std::string_view text : borrowed.views) {
            Passage passage;
            if (text.data() != nullptr && !self.find(text, passage, missing)) break;
            passages.push_back(std::move(passage));
        }
    }
    nb::list found, words;
    for (size_t i = 0; i < passages.size(); ++i) {
        const bool is_valid = borrowed.views[i].data() != nullptr;
        found.append(is_valid ? nb::object(shown_passage(passages[i])) : nb::none());
    }
    for (const std::string_view word : missing.words) words.append(to_str(word));
    return nb::make_tuple(found, nb::cast(missing.blocks), words);
}

// Known words of a view, and where its segments have their terms. The GIL guards it.
class SharedWords {
public:
    explicit SharedWords(size_t n_segments) : n_segments_(n_segments) {}

    // terms: of each word (term, idf, places), with the id of the term in each segment or -1; or a WordKind without a term.
    void learn(const nb::list& words, const nb::list& terms, const std::vector<bool>& asking) {
        const Texts borrowed(words);
        same_length("words and terms", borrowed.views.size(), terms.size());
        same_length("words and flags", borrowed.views.size(), asking.size());
        for (size_t i = 0; i < asking.size(); ++i) {
            if (borrowed.views[i].data() == nullptr) throw InvalidInput("a word is not valid text");
            const bool has_term = nb::isinstance<nb::tuple>(terms[i]);
            const WordKind kind = has_term ? WordKind::term : nb::cast<WordKind>(terms[i]);
            known_.learn(borrowed.views[i], kind, has_term ? number_of(nb::cast<nb::tuple>(terms[i])) : 0, asking[i]);
        }
    }

    // Returns ((terms, indptr, positions, weights, places, absent, words of each text), []), or (None, words to learn first); (None, [])
    // if a text cannot be read.
    nb::tuple read(nb::handle texts, bool counts_asking) const {
        const Texts borrowed(texts);
        WordQueries queries;
        std::vector<std::string> unknown;
        if (!known_.read(borrowed.views, counts_asking, queries, unknown)) return nb::make_tuple(nb::none(), nb::cast(unknown));
        nb::list terms, rows;
        for (const uint32_t term : queries.terms) terms.append(to_str(known_.term(term)));
        for (size_t i = 0; i + 1 < queries.word_indptr.size(); ++i) {
            nb::list row;
            for (size_t j = queries.word_indptr[i]; j < queries.word_indptr[i + 1]; ++j) {
                row.append(to_str(known_.term(queries.words[j])));
            }
            rows.append(row);
        }
        const nb::object places = places_of(queries.terms);
        const nb::tuple read = nb::make_tuple(terms, to_numpy(std::move(queries.indptr)), to_numpy(std::move(queries.positions)),
                                              to_numpy(std::move(queries.weights)), places,
                                              to_numpy(std::move(queries.absent)), rows);
        return nb::make_tuple(read, nb::list());
    }

private:
    uint32_t number_of(const nb::tuple& given) {
        const auto places = nb::cast<std::vector<int64_t>>(given[2]);
        same_length("a term's places and segments", places.size(), n_segments_);
        const bool is_absent = nb::cast<bool>(given[3]);
        const uint32_t number = known_.number_of(nb::cast<std::string>(given[0]), nb::cast<double>(given[1]), is_absent);
        if (known_.n_terms() * n_segments_ > places_.size()) places_.insert(places_.end(), places.begin(), places.end());
        return number;
    }

    nb::object places_of(const std::vector<uint32_t>& terms) const {
        nb::object places = new_array<int64_t, 2>({n_segments_, terms.size()});
        auto* at = static_cast<int64_t*>(array_data(places));
        for (size_t segment = 0; segment < n_segments_; ++segment) {
            for (const uint32_t term : terms) *at++ = places_[term * n_segments_ + segment];
        }
        return places;
    }

    size_t n_segments_;
    KnownWords known_;
    std::vector<int64_t> places_;  // of each term, by segment
};

}  // namespace

void bind_words(nb::module_& m) {
    nb::class_<SharedFinder>(m, "PassageFinder")
        .def(nb::init<bool, bool>())
        .def("learn_block", &bind_learn_block)
        .def("learn_words", &bind_learn_words)
        .def("find", &bind_find);
    nb::enum_<WordKind>(m, "WordKind").value("no_term", WordKind::no_term).value("other", WordKind::other);
    nb::class_<SharedWords>(m, "KnownWords")
        .def(nb::init<size_t>())
        .def("learn", &SharedWords::learn)
        .def("read", &SharedWords::read);
    m.def("split_words", &bind_split_words);
    m.def("near_terms", &bind_near_terms);
}

}  // namespace lightir
