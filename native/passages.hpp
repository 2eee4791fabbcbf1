// The passage of a text that has the most different terms of a query, for snippets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text_masks.hpp"

namespace lightir {

// What a finder must learn before it can search a text.
struct Missing {
    std::vector<uint32_t> blocks;         // blocks of 256 characters whose classes are unknown
    std::vector<std::string_view> words;  // distinct words whose terms are unknown, views into the text
};

// A passage of a text in which runs of white space are single blanks.
struct Passage {
    std::string text;
    bool cut_before = false, cut_after = false;
    std::vector<std::pair<size_t, size_t>> matches;  // start and end of each match in characters of the passage
};

struct PassageSize {
    size_t length;  // characters of a passage
    size_t lead;    // characters in front of its first match
};

// The terms of words. A word has one number: that of its only term, `no_term`, or `several` and a position in `lists`.
// Words of up to 16 bytes, which are most, stand in the slots of an open hash table, so that a look-up reads one place.
class WordTerms {
public:
    static constexpr uint32_t no_term = 0xffffffffu, unknown = 0xfffffffeu, several = 0x80000000u;

    WordTerms();
    // Returns the number of a word; `unknown` for one that was never added. The word lies inside a text that ends at
    // `text_end`, so that its 16 bytes are read at once where the text has them.
    uint32_t find(std::string_view word, const char* text_end) const;
    void add(std::string_view word, std::vector<uint32_t> terms);
    void clear();
    size_t size() const { return n_short_ + longer_.size(); }
    const std::vector<uint32_t>& list(uint32_t number) const { return lists_[number & ~several]; }

private:
    struct Slot {
        uint64_t head = 0, tail = 0;  // the bytes of the word, then zeros
        uint32_t number = 0, length = 0;  // length 0: free
    };

    size_t slot_of(uint64_t head, uint64_t tail, uint32_t length) const;

    std::vector<Slot> slots_;  // a power of two, at most half of them used
    size_t n_short_ = 0;
    uint64_t keys_[2];  // drawn at random, so that no text can be written whose words share their slots
    std::unordered_map<std::string, uint32_t> longer_;
    std::vector<std::vector<uint32_t>> lists_;
};

// Finds passages. Knows the terms of the words that it has seen, so that each word is analyzed once. Not thread-safe.
//
// A text is scanned once, in place. The scan ends early once a window has all terms of the query: no later one is better.
//
// With `same_beginnings` most words are not looked up. Then an ASCII word has at most one term. It begins with the word's
// first three characters in lower case, or two if it has less than four, where a y may have become an i; or it is the
// word's first character.
class PassageFinder {
public:
    static constexpr uint8_t word_class = 1, blank_class = 2, han_class = 4;

    // han_terms: whether Han characters and pairs of them are terms, and other words may have one character.
    // same_beginnings: whether ASCII words begin as their terms do.
    PassageFinder(bool han_terms, bool same_beginnings);
    PassageFinder(const PassageFinder&) = delete;
    PassageFinder& operator=(const PassageFinder&) = delete;

    // Sets the classes of 256 characters: bits of word_class, blank_class and han_class.
    void learn_block(uint32_t block, const uint8_t* classes);

    // Sets the terms of a word. Like `find`, forgets all words first if there are very many.
    void learn_word(std::string_view word, const std::vector<std::string>& terms);

    // Sets the terms and the size of the passages that `find` returns, until words are learned.
    void want(const std::vector<std::string>& wanted, PassageSize size);

    // Returns whether the text was searched; otherwise `missing` says what to learn first.
    bool find(std::string_view text, Passage& passage, Missing& missing);

private:
    struct Match {
        size_t start, end;              // characters of the text with single blanks
        size_t first_byte;              // in the text as it is
        size_t first_term, last_term;   // positions in matched_terms_
    };

    uint8_t class_of(uint32_t character, Missing& missing) const;
    uint8_t class_at(std::string_view text, size_t at, Missing& missing) const;
    void scan(std::string_view text, Missing& missing);
    size_t scan_blocks(std::string_view text, size_t at, size_t& n, bool& blank, Missing& missing);
    void want_beginnings(const std::vector<std::string>& wanted);
    size_t word_end(std::string_view text, size_t at, size_t& n_characters, Missing& missing) const;
    void end_word(std::string_view word, size_t start, size_t end, size_t first_byte, const char* text_end,
                  Missing& missing);
    size_t end_han(std::string_view text, size_t at, size_t start, size_t& n_characters, Missing& missing);
    void add_match(const Match& match);
    void finish_window();
    void forget_if_full();
    uint32_t number_of(std::string_view term);
    void cut(std::string_view text, Passage& passage, Missing& missing);
    size_t back(std::string_view text, size_t at, size_t n, Missing& missing) const;

    bool han_terms_;
    bool same_beginnings_;
    bool plain_words_ = false;   // whether the ASCII characters of words are letters, digits and underscore
    bool plain_blanks_ = false;  // whether those of white space are the ones that `masks_of` knows
    Beginnings beginnings_{};          // of the ASCII words that may match
    std::vector<std::unique_ptr<uint8_t[]>> classes_;
    WordTerms words_;
    std::unordered_map<std::string, uint32_t> terms_;
    std::vector<uint32_t> wanted_;  // position of each term in the query; `no_term` for others
    std::vector<uint32_t> numbers_;  // of the query's terms
    std::string name_;              // a buffer for the key of terms_
    PassageSize size_{0, 0};
    // Of the last text:
    size_t n_characters_ = 0;           // that were scanned, blanks in a row counted once
    std::vector<Match> matches_;
    std::vector<size_t> matched_terms_;
    std::vector<uint32_t> counts_;      // of each wanted term in the window from window_ on
    size_t window_ = 0, within_ = 0;    // its first match, and its number of different terms
    size_t best_ = 0, best_match_ = 0;  // the most different terms, and the first match of the first such window
    std::string part_;                  // what `cut` cuts from
    std::vector<size_t> bytes_;
    size_t stop_ = 0;                   // no character after this one can matter
};

}  // namespace lightir
