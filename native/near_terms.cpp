#include "near_terms.hpp"

#include <algorithm>

#include "errors.hpp"

namespace lightir {
namespace {

// Returns the character at `at` and moves `at` behind it. A byte that is not valid UTF-8 is a character of its own.
uint32_t next_character(std::string_view text, size_t& at) {
    const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
    const uint32_t first = byte(at);
    const size_t width = first < 0x80 ? 1 : first < 0xc0 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (width == 1) return text[at++], first;
    uint32_t character = width == 0 ? 0 : first & (0xffu >> (width + 1));
    bool valid = width != 0 && at + width <= text.size();
    for (size_t i = 1; valid && i < width; ++i) {
        valid = (byte(at + i) & 0xc0) == 0x80;
        character = character << 6 | (byte(at + i) & 0x3f);
    }
    if (!valid) return ++at, 0x110000u + first;
    at += width;
    return character;
}

std::vector<uint32_t> characters_of(std::string_view text) {
    std::vector<uint32_t> characters;
    for (size_t at = 0; at < text.size();) characters.push_back(next_character(text, at));
    return characters;
}

// Returns the first term from `begin` on that does not begin with the prefix, which term `begin` does: by doubling steps.
size_t end_of_prefix(const SortedTerms& terms, size_t begin, std::string_view prefix) {
    const auto has_prefix = [&](size_t i) { return terms.term(i).substr(0, prefix.size()) == prefix; };
    size_t step = 1, low = begin;  // term low has the prefix
    while (low + step < terms.size() && has_prefix(low + step)) {
        low += step;
        step *= 2;
    }
    size_t high = std::min(low + step, terms.size());
    while (low + 1 < high) {
        const size_t middle = low + (high - low) / 2;
        (has_prefix(middle) ? low : high) = middle;
    }
    return high;
}

// The table of distances between the prefixes of a word and those of the current term. A distance is at least the difference
// of their lengths, so a row needs only the cells whose lengths differ by at most the limit. The cells beside them are `far`.
class DistanceTable {
public:
    DistanceTable(std::string_view word, size_t distance, bool prefix)
        : word_(characters_of(word)), limit_(distance), far_(distance + 1), prefix_(prefix) {
        add_row();
        for (size_t i = 0; i <= std::min(word_.size(), limit_); ++i) rows_[0][i] = i;
        keep_row(0, 0);
    }

    // Keeps the rows of the first characters that a term shares with the last one, and adds its further rows until all
    // distances exceed the limit, which is in all terms that begin with the first `end` bytes of this one.
    void set(std::string_view term, size_t& end) {
        size_t at = 0, depth = 0;
        while (at < term.size() && depth < path_.size()) {
            size_t after = at;
            if (next_character(term, after) != path_[depth]) break;
            at = after;
            ++depth;
        }
        path_.resize(depth);
        while (at < term.size() && open()) add(next_character(term, at));
        end = at;
    }

    // Whether the last row has a distance within the limit.
    bool open() const { return least_[path_.size()] <= limit_; }

    size_t distance() const { return prefix_ ? nearest_[path_.size()] : whole_[path_.size()]; }

private:
    void add_row() {
        rows_.emplace_back(word_.size() + 1, far_);
        for (std::vector<size_t>* of_rows : {&least_, &whole_, &nearest_}) of_rows->push_back(far_);
    }

    void add(uint32_t character) {
        const size_t depth = path_.size() + 1;
        if (rows_.size() == depth) add_row();
        const std::vector<size_t>& above = rows_[depth - 1];
        std::vector<size_t>& row = rows_[depth];
        const size_t first = depth - std::min(depth, limit_), last = std::min(word_.size(), depth + limit_);
        size_t least = far_;
        for (size_t i = first; i <= last; ++i) {
            if (i == 0) {
                row[i] = depth;
            } else {
                row[i] = std::min({row[i - 1] + 1, above[i] + 1, above[i - 1] + (word_[i - 1] != character)});
                if (depth > 1 && i > 1 && word_[i - 1] == path_[depth - 2] && word_[i - 2] == character) {
                    row[i] = std::min(row[i], rows_[depth - 2][i - 2] + 1);
                }
            }
            least = std::min(least, row[i]);
        }
        path_.push_back(character);
        keep_row(depth, least);
    }

    // Sets what is asked of a row.
    void keep_row(size_t depth, size_t least) {
        least_[depth] = least;
        whole_[depth] = rows_[depth][word_.size()];
        nearest_[depth] = depth == 0 ? whole_[0] : std::min(nearest_[depth - 1], whole_[depth]);
    }

    std::vector<uint32_t> word_;
    size_t limit_, far_;
    bool prefix_;
    std::vector<std::vector<size_t>> rows_;  // one per character of the path, and one before the first
    std::vector<size_t> least_;              // the smallest distance of each row
    std::vector<size_t> whole_;              // the distance of the whole word in each row, `far_` outside of its cells
    std::vector<size_t> nearest_;            // the smallest of these in a row and those above it
    std::vector<uint32_t> path_;
};

}  // namespace

std::string_view SortedTerms::term(size_t i) const {
    const int64_t begin = indptr[i], end = indptr[i + 1];
    if (begin < 0 || end < begin || static_cast<size_t>(end) > text.size) {
        throw DamagedArrays("a term of the dictionary is outside its text");
    }
    return {reinterpret_cast<const char*>(text.data) + begin, static_cast<size_t>(end - begin)};
}

NearTerms near_terms(const SortedTerms& terms, std::string_view word, size_t distance, bool prefix) {
    NearTerms near;
    DistanceTable table(word, distance, prefix);
    for (size_t i = 0; i < terms.size();) {
        const std::string_view term = terms.term(i);
        size_t end = 0;
        table.set(term, end);
        if (table.distance() <= distance) {
            near.positions.push_back(static_cast<int64_t>(i));
            near.distances.push_back(static_cast<uint8_t>(table.distance()));
            ++i;
        } else {
            i = table.open() ? i + 1 : end_of_prefix(terms, i, term.substr(0, end));
        }
    }
    return near;
}

}  // namespace lightir
