// Word splitting of ASCII texts for the BM25 analyzers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lightir {

// Texts as lists of word ids, with a dictionary of the distinct words.
struct WordLists {
    std::string text;              // the distinct words, concatenated in order of first occurrence
    std::vector<size_t> ends;      // the end of each word in text
    std::vector<uint32_t> ids;     // positions of the texts' words among the distinct ones, concatenated
    std::vector<int64_t> indptr{0};
    std::vector<size_t> refused;   // texts that are not ASCII, ascending; their lists are empty
};

bool is_ascii(std::string_view text);

// Returns an ASCII text in lower case, with a null in place of each character that belongs to no word.
void set_lower(std::string_view text, std::string& lower);

// Calls use(word) with the words of an ASCII text in order: maximal runs of at least two letters, digits and underscores, in lower
// case, which are in `lower` from then on. They are the matches of the regular expression \b\w\w+\b in the lower-cased text.
template <typename Use>
void each_word(std::string_view text, std::string& lower, const Use& use) {
    set_lower(text, lower);
    const std::string_view all = lower;
    for (size_t begin = 0; begin < all.size();) {
        size_t end = begin;
        while (end < all.size() && all[end] != 0) ++end;
        if (end - begin >= 2) use(all.substr(begin, end - begin));
        begin = end + 1;
    }
}

// Splits texts into the words of `each_word`. A text whose data is null is refused too.
WordLists split_words(const std::vector<std::string_view>& texts);

}  // namespace lightir
