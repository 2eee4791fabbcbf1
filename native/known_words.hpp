// Queries of BM25 from the words of a text, for the words whose terms and weights are known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "passages.hpp"

namespace lightir {

// What a query's word is: it has no term, such as a stop word; it has one; or other rules than those of this class apply.
enum class WordKind : uint8_t { no_term, term, other };

// The queries of a batch over its distinct terms, which ascend by their bytes.
struct WordQueries {
    std::vector<uint32_t> terms;            // numbers of the distinct terms that documents have
    std::vector<int64_t> indptr{0};         // of each query's entries
    std::vector<uint32_t> positions;        // in `terms`, ascending within a query
    std::vector<float> weights;             // count x idf
    std::vector<double> absent;             // by query, the weight of its terms that no document has
    std::vector<uint32_t> words;            // numbers of the terms of all words, in the order of the text
    std::vector<size_t> word_indptr{0};     // of each query's words
};

// Words, their terms, and the terms' idf. Learns each word once. Not thread-safe.
//
// A word that asks, such as "what", does not count in a query that has other words, unless another word has its term. A word of
// capitals does not ask, since it may be an abbreviation, unless all of the text is in capitals.
class KnownWords {
public:
    // Returns the number of a term, which is the next one if it is new. is_absent: whether no document has it.
    uint32_t number_of(const std::string& term, double idf, bool is_absent);
    size_t n_terms() const { return terms_.size(); }

    // Sets the kind of a word in lower case, and its term if it has one.
    void learn(std::string_view word, WordKind kind, uint32_t term, bool asks);

    // Returns whether `queries` has the queries of all texts. Otherwise `unknown` has words that must be learned first, or, if it is
    // empty, a text cannot be read here: it is not ASCII, or has a word of another kind. Then `queries` is unfinished.
    bool read(const std::vector<std::string_view>& texts, bool counts_asking, WordQueries& queries,
              std::vector<std::string>& unknown) const;

    const std::string& term(uint32_t number) const { return terms_[number].text; }

private:
    struct Term {
        std::string text;
        double idf;
        bool is_absent;
    };
    struct Word {
        WordKind kind;
        bool asks;
        uint32_t term;
    };
    struct Reading {
        std::string lower;
        std::vector<uint32_t> words;   // numbers of the words
        std::vector<uint32_t> named;   // of those that ask, but in capitals
        std::vector<uint32_t> picked;  // terms that count
    };

    bool read_words(std::string_view text, Reading& reading, std::vector<std::string>& unknown) const;
    void pick(Reading& reading, bool counts_asking) const;
    void add(const Reading& reading, WordQueries& queries) const;
    bool precedes(uint32_t a, uint32_t b) const { return terms_[a].text < terms_[b].text; }

    std::vector<Term> terms_;
    std::unordered_map<std::string, uint32_t> term_numbers_;
    std::vector<Word> words_;
    WordTerms numbers_;  // positions in words_
};

}  // namespace lightir
