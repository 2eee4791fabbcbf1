// Pre-tokenizers for ASCII text. Each function calls use(word, size) for each word in order, until the end or until use
// returns false. The words cover the whole text, except for the characters that bert drops. Seven bytes after the text
// must be readable.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tokenizer.hpp"

namespace lightir {

// The classes of ASCII characters that the patterns distinguish. White space is last.
enum class Kind : uint8_t { letter, digit, other, blank, white, line_end };

constexpr std::array<Kind, 128> make_kinds() {
    std::array<Kind, 128> kinds{};
    for (size_t c = 0; c < 128; ++c) {
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        kinds[c] = letter                              ? Kind::letter
                   : c >= '0' && c <= '9'              ? Kind::digit
                   : c == ' '                          ? Kind::blank
                   : c == '\r' || c == '\n'            ? Kind::line_end
                   : c == '\t' || c == '\v' || c == '\f' ? Kind::white
                                                       : Kind::other;
    }
    return kinds;
}

inline constexpr std::array<Kind, 128> kinds = make_kinds();

inline Kind kind(char c) { return kinds[static_cast<uint8_t>(c) & 0x7f]; }
inline bool is_white(char c) { return kind(c) >= Kind::blank; }

template <typename Is>
inline size_t end_of_run(const char* text, size_t i, size_t end, const Is& is) {
    while (i < end && is(text[i])) ++i;
    return i;
}

// Sets bit 7 of each of eight ASCII bytes that is a letter, or a digit; sums of bytes below 0x80 do not carry over.
inline uint64_t letters(uint64_t bytes) {
    const uint64_t lower = bytes | 0x2020202020202020u;
    return (lower + 0x1f1f1f1f1f1f1f1fu) & ~(lower + 0x0505050505050505u) & 0x8080808080808080u;
}

inline uint64_t digits(uint64_t bytes) {
    return (bytes + 0x5050505050505050u) & ~(bytes + 0x4646464646464646u) & 0x8080808080808080u;
}

// Returns the same as end_of_run, eight bytes at a time. stops(bytes) sets bit 7 of each byte that ends the run. Reads seven
// bytes after the end.
template <typename Stops>
inline size_t end_of_long_run(const char* text, size_t i, size_t end, const Stops& stops) {
    for (; i < end; i += 8) {
        uint64_t bytes;
        std::memcpy(&bytes, text + i, 8);
        const uint64_t found = stops(bytes & 0x7f7f7f7f7f7f7f7fu);
        if (found == 0) continue;
        const size_t stop = i + static_cast<size_t>(__builtin_ctzll(found)) / 8;
        return stop < end ? stop : end;
    }
    return end;
}

inline size_t end_of_letters(const char* text, size_t i, size_t end) {
    return end_of_long_run(text, i, end, [](uint64_t bytes) { return letters(bytes) ^ 0x8080808080808080u; });
}

inline size_t end_of_kind(const char* text, size_t i, size_t end, Kind wanted) {
    if (wanted == Kind::letter) return end_of_letters(text, i, end);
    return end_of_run(text, i, end, [wanted](char c) { return kind(c) == wanted; });
}

// Returns the size of 's, 't, 'm, 'd, 're, 've or 'll at i, the position of a '; 0 for none of them.
template <bool any_case>
inline size_t contraction(const char* text, size_t i, size_t end) {
    const auto at = [&](size_t j) { return static_cast<char>(any_case ? text[j] | 0x20 : text[j]); };
    if (i + 1 >= end) return 0;
    const char first = at(i + 1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if (i + 2 >= end) return 0;
    const char second = at(i + 2);
    const bool known = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                       (first == 'l' && second == 'l');
    return known ? 3 : 0;
}

// Returns the end of \s+(?!\S)|\s+ in white space from begin to end_of_white; the last character goes to the next word.
inline size_t end_of_white_word(size_t begin, size_t end_of_white, size_t end) {
    return end_of_white < end && end_of_white - begin > 1 ? end_of_white - 1 : end_of_white;
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
template <typename Use>
bool each_gpt2_word(const char* text, size_t i, size_t end, const Use& use) {
    while (i < end) {
        const size_t begin = i;
        const size_t short_form = text[i] == '\'' ? contraction<false>(text, i, end) : 0;
        if (short_form != 0) {
            i += short_form;
        } else {
            if (text[i] == ' ' && i + 1 < end && !is_white(text[i + 1])) ++i;
            if (is_white(text[i])) {
                i = end_of_white_word(begin, end_of_run(text, i, end, is_white), end);
            } else {
                i = end_of_kind(text, i, end, kind(text[i]));
            }
        }
        if (!use(text + begin, i - begin)) return false;
    }
    return true;
}

// Each digit is a word; the text between digits is split separately.
template <typename Use>
bool each_gpt2_digits_word(const char* text, size_t i, size_t end, const Use& use) {
    while (i < end) {
        if (kind(text[i]) == Kind::digit) {
            if (!use(text + i, 1)) return false;
            ++i;
            continue;
        }
        const size_t digit = end_of_long_run(text, i, end, digits);
        if (!each_gpt2_word(text, i, digit, use)) return false;
        i = digit;
    }
    return true;
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max_digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
// \s+(?!\S)|\s+
template <size_t max_digits>
size_t end_of_llama3_word(const char* text, size_t i, size_t end) {
    if (text[i] == '\'') {
        if (const size_t short_form = contraction<true>(text, i, end)) return i + short_form;
    }
    const Kind first = kind(text[i]);
    const Kind second = i + 1 < end ? kind(text[i + 1]) : Kind::line_end;
    if (first == Kind::letter) return end_of_kind(text, i, end, Kind::letter);
    if (first != Kind::line_end && first != Kind::digit && second == Kind::letter) {
        return end_of_kind(text, i + 1, end, Kind::letter);
    }
    if (first == Kind::digit) return end_of_kind(text, i, end < i + max_digits ? end : i + max_digits, Kind::digit);
    if (first == Kind::other || (first == Kind::blank && second == Kind::other)) {
        return end_of_kind(text, end_of_kind(text, i + 1, end, Kind::other), end, Kind::line_end);
    }
    const size_t end_of_white = end_of_run(text, i, end, is_white);
    for (size_t j = end_of_white; j > i; --j) {
        if (kind(text[j - 1]) == Kind::line_end) return j;
    }
    return end_of_white_word(i, end_of_white, end);
}

template <size_t max_digits, typename Use>
bool each_llama3_word(const char* text, size_t i, size_t end, const Use& use) {
    while (i < end) {
        const size_t word_end = end_of_llama3_word<max_digits>(text, i, end);
        if (!use(text + i, word_end - i)) return false;
        i = word_end;
    }
    return true;
}

inline bool is_punctuation(char c) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

// White space separates words and is dropped; each punctuation mark is a word.
template <typename Use>
bool each_bert_word(const char* text, size_t i, size_t end, const Use& use) {
    while (i < end) {
        const size_t begin = i;
        if (is_white(text[i])) {
            ++i;
            continue;
        }
        i = is_punctuation(text[i])
                ? i + 1
                : end_of_run(text, i, end, [](char c) { return !is_white(c) && !is_punctuation(c); });
        if (!use(text + begin, i - begin)) return false;
    }
    return true;
}

template <typename Use>
bool each_word(Split split, const char* text, size_t size, const Use& use) {
    switch (split) {
        case Split::gpt2: return each_gpt2_word(text, 0, size, use);
        case Split::gpt2_digits: return each_gpt2_digits_word(text, 0, size, use);
        case Split::llama3: return each_llama3_word<3>(text, 0, size, use);
        case Split::qwen2: return each_llama3_word<1>(text, 0, size, use);
        case Split::bert: return each_bert_word(text, 0, size, use);
    }
    return true;
}

}  // namespace lightir
