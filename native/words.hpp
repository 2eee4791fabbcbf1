// The words that BM25's analyzers count, for ASCII texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lightir {

// Texts as lists of words, each word once in a dictionary.
struct WordLists {
    std::string text;              // the distinct words one after the other, in the order of their first occurrence
    std::vector<size_t> ends;      // where each of them ends in it
    std::vector<uint32_t> ids;     // the texts' words, as places among the distinct ones, one text after the other
    std::vector<int64_t> indptr{0};
    std::vector<size_t> refused;   // texts that are not ASCII, ascending; their lists are empty
};

// A word is a longest run of letters, digits and underscores, of two at least, in lower case: what the regular
// expression \b\w\w+\b finds in the text in lower case. A text whose data is null is refused too.
WordLists split_words(const std::vector<std::string_view>& texts);

}  // namespace lightir
