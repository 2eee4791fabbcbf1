// Sums over a block of codes with vectors of 32 bytes, for the levels avx2 and avx512: reading codes is then limited by
// memory. Included by their files, each of which compiles it for its own instruction set.
#pragma once

#include <immintrin.h>

#include "level_loops.hpp"

namespace lightir {
namespace {

// Sums of 32 rows: those of even rows, with 256 times those of odd rows, modulo 65,536; and those of odd rows.
struct CodeSums {
    __m256i all = _mm256_setzero_si256(), odd = _mm256_setzero_si256();

    // Adds the numbers that two tables of 16 have for the halves of 32 bytes. Two numbers of 7 bits fit a byte.
    void add(const uint8_t* bytes, __m256i lower_table, __m256i upper_table) {
        const __m256i half = _mm256_set1_epi8(15);
        const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
        const __m256i lower = _mm256_shuffle_epi8(lower_table, _mm256_and_si256(codes, half));
        const __m256i upper = _mm256_shuffle_epi8(upper_table, _mm256_and_si256(_mm256_srli_epi16(codes, 4), half));
        const __m256i both = _mm256_add_epi8(lower, upper);
        all = _mm256_add_epi16(all, both);
        odd = _mm256_add_epi16(odd, _mm256_srli_epi16(both, 8));
    }

    void store(uint16_t* sums) const {
        const __m256i even = _mm256_sub_epi16(all, _mm256_slli_epi16(odd, 8));
        const __m256i low = _mm256_unpacklo_epi16(even, odd), high = _mm256_unpackhi_epi16(even, odd);
        __m256i* out = reinterpret_cast<__m256i*>(sums);
        _mm256_storeu_si256(out, _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(low, high, 0x31));
    }
};

// The sums of some columns of a block; column i has the tables 2 i and 2 i + 1.
inline void sum_codes(const uint8_t* block, const uint16_t* columns, size_t n_columns, const uint8_t* tables, uint16_t* sums) {
    const auto table = [tables](size_t number) {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(tables) + number));
    };
    CodeSums first, second;
    for (size_t i = 0; i < n_columns; ++i) {
        const uint8_t* bytes = block + columns[i] * coded_block;
        const __m256i lower = table(2 * i), upper = table(2 * i + 1);
        first.add(bytes, lower, upper);
        second.add(bytes + coded_block / 2, lower, upper);
    }
    first.store(sums);
    second.store(sums + coded_block / 2);
}

}  // namespace
}  // namespace lightir
