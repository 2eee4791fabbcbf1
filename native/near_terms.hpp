// Terms of a sorted dictionary that are near a word by edit distance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "arrays.hpp"

namespace lightir {

// A dictionary: distinct terms in UTF-8, ascending by their bytes; term i is text[indptr[i]:indptr[i + 1]].
struct SortedTerms {
    Span<uint8_t> text;
    Span<int64_t> indptr;

    size_t size() const { return indptr.size - 1; }

    // Throws DamagedArrays if the term is outside the text.
    std::string_view term(size_t i) const;
};

// Terms and their distances, in the dictionary's order.
struct NearTerms {
    std::vector<int64_t> positions;
    std::vector<uint8_t> distances;
};

// Returns the terms whose distance from the word is at most `distance`: the number of characters to insert, delete, replace
// or swap with their neighbor, where no part of the word is changed twice (optimal string alignment). With `prefix` the
// distance of a term is the smallest one of its prefixes.
//
// The terms are visited in order. The table of distances keeps one row per character of the current term, so terms with a
// common prefix share its rows, and once all of a row exceeds the limit, all terms with that prefix are skipped.
NearTerms near_terms(const SortedTerms& terms, std::string_view word, size_t distance, bool prefix);

}  // namespace lightir
