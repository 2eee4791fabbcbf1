// The passage of a text that has the most different terms of a query, for snippets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lightir {

// What a finder must learn before it can search a text.
struct Missing {
    std::vector<uint32_t> blocks;         // blocks of 256 characters whose classes are unknown
    std::vector<std::string_view> words;  // distinct words whose terms are unknown, views into the finder's last text
};

// A passage of a text in which runs of white space are single blanks.
struct Passage {
    std::string_view text;  // a view into the finder's last text
    bool cut_before = false, cut_after = false;
    std::vector<std::pair<size_t, size_t>> matches;  // start and end of each match in characters of the passage
};

struct PassageSize {
    size_t length;  // characters of a passage
    size_t lead;    // characters in front of its first match
};

// Finds passages. Knows the terms of the words that it has seen, so that each word is analyzed once. Not thread-safe.
class PassageFinder {
public:
    static constexpr uint8_t word_class = 1, blank_class = 2, han_class = 4;

    // han_terms: whether Han characters and pairs of them are terms, and other words may have one character.
    explicit PassageFinder(bool han_terms);
    PassageFinder(const PassageFinder&) = delete;
    PassageFinder& operator=(const PassageFinder&) = delete;

    // Sets the classes of 256 characters: bits of word_class, blank_class and han_class.
    void learn_block(uint32_t block, const uint8_t* classes);

    // Sets the terms of a word. Like `find`, forgets all words first if there are very many.
    void learn_word(std::string_view word, const std::vector<std::string>& terms);

    // Returns whether the text was searched; otherwise `missing` says what to learn first.
    bool find(std::string_view text, const std::vector<std::string>& wanted, PassageSize size, Passage& passage,
              Missing& missing);

private:
    struct Match {
        size_t start, end;              // characters
        size_t first_term, last_term;   // positions in matched_terms_
    };

    uint8_t class_of(uint32_t character, Missing& missing) const;
    void scan(std::string_view text, Missing& missing);
    void append(std::string_view bytes, size_t n_characters);
    void end_word(size_t start, size_t first_byte, Missing& missing);
    void end_han(size_t start, const std::vector<size_t>& first_bytes);
    void add_match(size_t start, size_t end, size_t first_term);
    void forget_if_full();
    uint32_t number_of(std::string_view term);
    int64_t best_start(int64_t length, size_t n_wanted) const;
    size_t byte_of(size_t character) const;
    int64_t find_blank(int64_t begin, int64_t end, bool last) const;

    bool han_terms_;
    std::vector<std::unique_ptr<uint8_t[]>> classes_;
    std::deque<std::string> kept_;                                       // the text of words and terms
    std::unordered_map<std::string_view, std::vector<uint32_t>> words_;  // the terms of each known word
    std::unordered_map<std::string_view, uint32_t> terms_;
    std::vector<int64_t> wanted_;  // position of each term in the query; -1 for others
    // Of the last text:
    std::string text_;                  // with single blanks
    size_t n_characters_ = 0;
    std::vector<size_t> every_64th_;    // first byte of each 64th character
    std::vector<Match> matches_;
    std::vector<size_t> matched_terms_;
};

}  // namespace lightir
