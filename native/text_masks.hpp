// The classes of 64 bytes of text, a bit each, for the scan of passages. Each dispatch level has its own way to find them.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lightir {

constexpr size_t block_bytes = 64;

// Number of bytes that a block is read with: its last word may begin two bytes before its end.
constexpr size_t block_bytes_read = block_bytes + 2;

// Beginnings of words: the first three letters by their low 5 bits, which tell letters but not their case. A beginning is
// one of 8 bits, set for each letter that it may have in the first, second and third place; further ones share the bits.
struct Beginnings {
    static constexpr size_t n_low = 32;
    uint8_t first[n_low], second[n_low], third[n_low];

    static size_t low(char letter) { return static_cast<size_t>(letter) & (n_low - 1); }
    static void set_all(uint8_t* place, uint8_t bits) {
        for (size_t letter = 0; letter < n_low; ++letter) place[letter] |= bits;
    }
    // Whether 3 bytes have one of the beginnings, or letters of several that share a bit.
    bool has(const char* word) const { return (first[low(word[0])] & second[low(word[1])] & third[low(word[2])]) != 0; }
};

struct TextMasks {
    uint64_t words = 0, blanks = 0, others = 0;  // of words, white space, not ASCII
    uint64_t begins = 0;                         // where a word begins: whether it may have one of the beginnings
};

// Whether a byte is an ASCII letter, digit or underscore.
inline bool is_plain(uint8_t byte) {
    return static_cast<uint8_t>((byte | 0x20) - 'a') < 26 || static_cast<uint8_t>(byte - '0') < 10 || byte == '_';
}

// Whether a byte is ASCII white space as Python has it.
inline bool is_plain_blank(uint8_t byte) {
    return byte == ' ' || static_cast<uint8_t>(byte - 9) < 5 || static_cast<uint8_t>(byte - 28) < 4;
}

// Returns the masks by the instructions that every processor of the kind has.
inline TextMasks baseline_text_masks(const char* bytes, const Beginnings& beginnings) {
    TextMasks masks;
#if defined(__SSE2__)
    for (size_t part = 0; part < block_bytes; part += 16) {
        const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + part));
        const auto within = [](__m128i from, char first, char n) {  // whether first <= from < first + n
            const __m128i shifted = _mm_sub_epi8(from, _mm_set1_epi8(first));
            return _mm_cmpeq_epi8(_mm_min_epu8(shifted, _mm_set1_epi8(static_cast<char>(n - 1))), shifted);
        };
        const auto equal = [&](char byte) { return _mm_cmpeq_epi8(text, _mm_set1_epi8(byte)); };
        const auto bits = [&](__m128i mask) { return uint64_t{static_cast<uint32_t>(_mm_movemask_epi8(mask))} << part; };
        const __m128i letters = within(_mm_or_si128(text, _mm_set1_epi8(0x20)), 'a', 26);
        masks.words |= bits(_mm_or_si128(letters, _mm_or_si128(within(text, '0', 10), equal('_'))));
        masks.blanks |= bits(_mm_or_si128(_mm_or_si128(within(text, 9, 5), within(text, 28, 4)), equal(' ')));
        masks.others |= bits(text);
    }
#else
    for (size_t i = 0; i < block_bytes; ++i) {
        const auto byte = static_cast<uint8_t>(bytes[i]);
        masks.words |= uint64_t{is_plain(byte)} << i;
        masks.blanks |= uint64_t{is_plain_blank(byte)} << i;
        masks.others |= uint64_t{byte >= 0x80} << i;
    }
#endif
    for (uint64_t starts = masks.words & ~(masks.words << 1); starts != 0; starts &= starts - 1) {
        const auto start = static_cast<size_t>(__builtin_ctzll(starts));
        masks.begins |= uint64_t{beginnings.has(bytes + start)} << start;
    }
    return masks;
}

}  // namespace lightir
