#include "passages.hpp"

#include <algorithm>

namespace lightir {
namespace {

constexpr size_t block_size = 256, n_blocks = 0x110000 / block_size, step = 64, most_texts = 500'000;

// Returns the number of bytes of a character from its first byte.
size_t width_of(char first) {
    const auto byte = static_cast<uint8_t>(first);
    return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// Returns the character of valid UTF-8.
uint32_t character_of(std::string_view bytes) {
    const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])); };
    switch (bytes.size()) {
        case 1: return byte(0);
        case 2: return (byte(0) & 0x1fu) << 6 | (byte(1) & 0x3fu);
        case 3: return (byte(0) & 0x0fu) << 12 | (byte(1) & 0x3fu) << 6 | (byte(2) & 0x3fu);
        default:
            return (byte(0) & 0x07u) << 18 | (byte(1) & 0x3fu) << 12 | (byte(2) & 0x3fu) << 6 | (byte(3) & 0x3fu);
    }
}

}  // namespace

PassageFinder::PassageFinder(bool han_terms) : han_terms_(han_terms), classes_(n_blocks) {}

void PassageFinder::learn_block(uint32_t block, const uint8_t* classes) {
    if (block >= n_blocks) return;
    classes_[block] = std::make_unique<uint8_t[]>(block_size);
    std::copy_n(classes, block_size, classes_[block].get());
}

uint32_t PassageFinder::number_of(std::string_view term) {
    const auto found = terms_.find(term);
    if (found != terms_.end()) return found->second;
    const auto number = static_cast<uint32_t>(terms_.size());
    terms_.emplace(kept_.emplace_back(term), number);
    wanted_.push_back(-1);
    return number;
}

void PassageFinder::forget_if_full() {
    if (kept_.size() < most_texts) return;
    words_.clear();
    terms_.clear();
    wanted_.clear();
    kept_.clear();
}

void PassageFinder::learn_word(std::string_view word, const std::vector<std::string>& terms) {
    forget_if_full();
    if (words_.find(word) != words_.end()) return;
    std::vector<uint32_t> numbers;
    for (const std::string& term : terms) numbers.push_back(number_of(term));
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    words_.emplace(kept_.emplace_back(word), std::move(numbers));
}

uint8_t PassageFinder::class_of(uint32_t character, Missing& missing) const {
    const uint32_t block = character / block_size;
    if (classes_[block] != nullptr) return classes_[block][character % block_size];
    if (std::find(missing.blocks.begin(), missing.blocks.end(), block) == missing.blocks.end()) {
        missing.blocks.push_back(block);
    }
    return 0;
}

void PassageFinder::append(std::string_view bytes, size_t n_characters) {
    for (size_t next = every_64th_.size() * step; next < n_characters_ + n_characters; next += step) {
        every_64th_.push_back(text_.size() + (next - n_characters_));  // several characters have one byte each
    }
    text_.append(bytes);
    n_characters_ += n_characters;
}

void PassageFinder::add_match(size_t start, size_t end, size_t first_term) {
    if (matched_terms_.size() > first_term) matches_.push_back({start, end, first_term, matched_terms_.size()});
}

void PassageFinder::end_word(size_t start, size_t first_byte, Missing& missing) {
    if (n_characters_ - start < (han_terms_ ? 1u : 2u)) return;
    const std::string_view word = std::string_view(text_).substr(first_byte);
    const auto found = words_.find(word);
    if (found == words_.end()) {
        missing.words.push_back(word);
        return;
    }
    const size_t first_term = matched_terms_.size();
    for (const uint32_t term : found->second) {
        if (wanted_[term] >= 0) matched_terms_.push_back(static_cast<size_t>(wanted_[term]));
    }
    add_match(start, n_characters_, first_term);
}

// Finds wanted pairs, and single characters outside them, in a run of Han characters.
void PassageFinder::end_han(size_t start, const std::vector<size_t>& first_bytes) {
    const auto part = [&](size_t first, size_t n) {
        const size_t end = first + n < first_bytes.size() ? first_bytes[first + n] : text_.size();
        return std::string_view(text_).substr(first_bytes[first], end - first_bytes[first]);
    };
    const auto position = [&](std::string_view term) {
        const auto found = terms_.find(term);
        return found == terms_.end() ? int64_t{-1} : wanted_[found->second];
    };
    for (size_t i = 0; i < first_bytes.size();) {
        const int64_t pair = i + 1 < first_bytes.size() ? position(part(i, 2)) : -1;
        const size_t n = pair >= 0 ? 2 : 1, first_term = matched_terms_.size();
        if (pair >= 0) matched_terms_.push_back(static_cast<size_t>(pair));
        for (size_t j = i; j < i + n; ++j) {
            const int64_t single = position(part(j, 1));
            if (single >= 0 && !(j == i + 1 && part(i, 1) == part(j, 1))) {
                matched_terms_.push_back(static_cast<size_t>(single));
            }
        }
        add_match(start + i, start + i + n, first_term);
        i += n;
    }
}

// Sets text_ and matches_.
void PassageFinder::scan(std::string_view text, Missing& missing) {
    text_.clear();
    text_.reserve(text.size());  // views of missing words stay valid
    n_characters_ = 0;
    every_64th_.clear();
    matches_.clear();
    matched_terms_.clear();
    bool in_word = false, blank = false;
    size_t start = 0, first_byte = 0;
    std::vector<size_t> han;
    const auto end_run = [&] {
        if (in_word) end_word(start, first_byte, missing);
        if (!han.empty()) end_han(start, han);
        in_word = false;
        han.clear();
    };
    const uint8_t* const ascii = classes_[0].get();
    const auto is_ascii_word = [&](size_t i) {
        const auto byte = static_cast<uint8_t>(text[i]);
        return byte < 0x80 && (ascii[byte] & word_class) != 0;
    };
    for (size_t at = 0; at < text.size();) {
        std::string_view bytes = text.substr(at, width_of(text[at]));
        const uint8_t kind = class_of(character_of(bytes), missing);
        size_t n_characters = 1;
        if (ascii != nullptr && is_ascii_word(at)) {  // take all that follow, which are faster at once
            size_t end = at + 1;
            while (end < text.size() && is_ascii_word(end)) ++end;
            n_characters = end - at;
            bytes = text.substr(at, n_characters);
        }
        at += bytes.size();
        if ((kind & blank_class) != 0) {
            end_run();
            blank = n_characters_ > 0;
            continue;
        }
        const bool is_han = han_terms_ && (kind & han_class) != 0, is_word = !is_han && (kind & word_class) != 0;
        if ((in_word && !is_word) || (!han.empty() && !is_han)) end_run();
        if (blank) append(" ", 1);
        blank = false;
        if ((is_word && !in_word) || (is_han && han.empty())) {
            start = n_characters_;
            first_byte = text_.size();
        }
        in_word = is_word;
        if (is_han) han.push_back(text_.size());
        append(bytes, n_characters);
    }
    end_run();
}

// Returns the start of the first window of `length` characters with the most different terms; 0 without matches.
int64_t PassageFinder::best_start(int64_t length, size_t n_wanted) const {
    std::vector<uint32_t> counts(n_wanted);
    size_t last = 0, within = 0, best = 0;
    int64_t start = 0;
    for (size_t i = 0; i < matches_.size(); ++i) {
        const auto begin = static_cast<int64_t>(matches_[i].start);
        while (last < matches_.size() && (last <= i || static_cast<int64_t>(matches_[last].end) <= begin + length)) {
            for (size_t j = matches_[last].first_term; j < matches_[last].last_term; ++j) {
                within += counts[matched_terms_[j]]++ == 0;
            }
            ++last;
        }
        if (within > best) {
            best = within;
            start = begin;
        }
        for (size_t j = matches_[i].first_term; j < matches_[i].last_term; ++j) {
            within -= --counts[matched_terms_[j]] == 0;
        }
    }
    return start;
}

size_t PassageFinder::byte_of(size_t character) const {
    if (character >= n_characters_) return text_.size();
    size_t byte = every_64th_[character / step];
    for (size_t i = 0; i < character % step; ++i) byte += width_of(text_[byte]);
    return byte;
}

// Returns the first or last blank from `begin` to `end` - 1; -1 if there is none.
int64_t PassageFinder::find_blank(int64_t begin, int64_t end, bool last) const {
    int64_t found = -1;
    size_t byte = byte_of(static_cast<size_t>(begin));
    for (int64_t at = begin; at < end && byte < text_.size(); ++at) {
        if (text_[byte] == ' ') {
            found = at;
            if (!last) return found;
        }
        byte += width_of(text_[byte]);
    }
    return found;
}

bool PassageFinder::find(std::string_view text, const std::vector<std::string>& wanted, PassageSize size,
                         Passage& passage, Missing& missing) {
    forget_if_full();
    for (size_t i = 0; i < wanted.size(); ++i) wanted_[number_of(wanted[i])] = static_cast<int64_t>(i);
    scan(text, missing);
    for (const std::string& term : wanted) wanted_[number_of(term)] = -1;
    if (!missing.blocks.empty()) missing.words.clear();  // they may be parts of words
    if (!missing.blocks.empty() || !missing.words.empty()) {
        std::sort(missing.words.begin(), missing.words.end());
        missing.words.erase(std::unique(missing.words.begin(), missing.words.end()), missing.words.end());
        return false;
    }
    const auto n = static_cast<int64_t>(n_characters_), length = static_cast<int64_t>(size.length);
    const auto lead = static_cast<int64_t>(size.lead);
    int64_t start = 0, end = n;
    if (n > length) {
        const int64_t first = best_start(length - lead, wanted.size());
        start = std::max<int64_t>(0, first - lead);
        if (start > 0) {
            const int64_t blank = find_blank(start - 1, first, false);
            if (blank >= 0) start = blank + 1;
        }
        end = std::min(n, start + length);
        if (end < n) {
            const int64_t blank = find_blank(start + length / 2, end + 1, true);
            if (blank >= 0) end = blank;
        }
    }
    const size_t first_byte = byte_of(static_cast<size_t>(start));
    passage.text = std::string_view(text_).substr(first_byte, byte_of(static_cast<size_t>(end)) - first_byte);
    passage.cut_before = start > 0;
    passage.cut_after = end < n;
    for (const Match& match : matches_) {
        if (static_cast<int64_t>(match.start) >= start && static_cast<int64_t>(match.end) <= end) {
            passage.matches.emplace_back(match.start - static_cast<size_t>(start), match.end - static_cast<size_t>(start));
        }
    }
    return true;
}

}  // namespace lightir
