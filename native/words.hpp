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

// Splits texts into words: maximal runs of at least two letters, digits and underscores, in lower case. This equals the
// matches of the regular expression \b\w\w+\b in the lower-cased text. A text whose data is null is refused too.
WordLists split_words(const std::vector<std::string_view>& texts);

}  // namespace lightir
