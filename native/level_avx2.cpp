// Compiled with -mavx2 -mf16c; called only if the processor supports both.
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

struct Avx2 {
    static constexpr size_t width = 8;
    using Floats = __m256;

    static Floats zero() { return _mm256_setzero_ps(); }
    static Floats set(float x) { return _mm256_set1_ps(x); }
    static Floats load_float(const float* p) { return _mm256_loadu_ps(p); }
    static Floats load_half(const uint16_t* p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static Floats load_bfloat16(const uint16_t* p) {
        const __m256i upper = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        return _mm256_castsi256_ps(_mm256_slli_epi32(upper, 16));
    }
    static Floats load_int8(const int8_t* p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    static Floats load_uint8(const uint8_t* p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
    static Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
    static Floats magnitude(Floats a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
    static void store(float* p, Floats a) { _mm256_storeu_ps(p, a); }
    static void stream(float* p, Floats a) { _mm256_stream_ps(p, a); }
    static void clear_line(void* p) {
        _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_setzero_si256());
        _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, _mm256_setzero_si256());
    }

    static constexpr bool has_coarse_dots = false;
    static float coarse_dot(const int8_t* row, const CoarseQuery& query) {
        __m256i sums = _mm256_setzero_si256();
        size_t j = 0;
        for (; j + 16 <= query.dim; j += 16) {
            const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(query.values + j));
            const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + j)));
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(wide, values));
        }
        int32_t rest = 0;
        for (; j < query.dim; ++j) rest += row[j] * query.values[j];
        const __m256 lanes = _mm256_cvtepi32_ps(sums);
        __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
        four = _mm_add_ps(four, _mm_movehl_ps(four, four));
        four = _mm_add_ss(four, _mm_shuffle_ps(four, four, 1));
        return _mm_cvtss_f32(four) + static_cast<float>(rest);
    }

    static int32_t byte_product(const int8_t* row, const ByteQuery& query) {
        const auto wide = [](const int8_t* p) {
            return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        };
        __m256i sums = _mm256_setzero_si256();
        size_t j = 0;
        for (; j + 16 <= query.dim; j += 16) {
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(wide(row + j), wide(query.values + j)));
        }
        int32_t total = 0;
        for (; j < query.dim; ++j) total += row[j] * query.values[j];
        __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
        return total + _mm_cvtsi128_si32(four);
    }

    static constexpr bool reads_codes = true;
    // Column i of a block has the tables 2 i and 2 i + 1. Each column prefetches that of a later block.
    static void code_sums(const uint8_t* block, size_t n_columns, const uint8_t* tables, uint16_t* sums) {
        const auto table = [tables](size_t number) {
            return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(tables) + number));
        };
        const size_t ahead = codes_ahead(n_columns);
        CodeSums first, second;
        for (size_t i = 0; i < n_columns; ++i) {
            const uint8_t* bytes = block + i * coded_block;
            __builtin_prefetch(bytes + ahead);
            const __m256i lower = table(2 * i), upper = table(2 * i + 1);
            first.add(bytes, lower, upper);
            second.add(bytes + coded_block / 2, lower, upper);
        }
        first.store(sums);
        second.store(sums + coded_block / 2);
    }

    // What a place of Beginnings has for the letters of 32 bytes: two look-ups in 16 entries each. The one whose index has
    // bit 7 set gives 0.
    static __m256i in_place(const uint8_t* place, const char* bytes) {
        const auto half = [&](size_t from) {
            return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(place + from)));
        };
        const __m256i text = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
        const __m256i low = _mm256_and_si256(text, _mm256_set1_epi8(Beginnings::n_low - 1));
        const __m256i index = _mm256_add_epi8(low, _mm256_set1_epi8(0x70));
        return _mm256_or_si256(_mm256_shuffle_epi8(half(0), index),
                               _mm256_shuffle_epi8(half(16), _mm256_xor_si256(index, _mm256_set1_epi8(-128))));
    }
    static TextMasks text_masks(const char* bytes, const Beginnings& beginnings) {
        TextMasks masks;
        for (size_t part = 0; part < block_bytes; part += 32) {
            const __m256i text = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + part));
            const auto within = [](__m256i from, char first, char n) {  // whether first <= from < first + n
                const __m256i shifted = _mm256_sub_epi8(from, _mm256_set1_epi8(first));
                return _mm256_cmpeq_epi8(_mm256_min_epu8(shifted, _mm256_set1_epi8(static_cast<char>(n - 1))), shifted);
            };
            const auto equal = [&](char byte) { return _mm256_cmpeq_epi8(text, _mm256_set1_epi8(byte)); };
            const auto bits = [&](__m256i mask) { return uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(mask))} << part; };
            const __m256i letters = within(_mm256_or_si256(text, _mm256_set1_epi8(0x20)), 'a', 26);
            masks.words |= bits(_mm256_or_si256(letters, _mm256_or_si256(within(text, '0', 10), equal('_'))));
            masks.blanks |= bits(_mm256_or_si256(_mm256_or_si256(within(text, 9, 5), within(text, 28, 4)), equal(' ')));
            masks.others |= bits(text);
            const __m256i shared = _mm256_and_si256(
                _mm256_and_si256(in_place(beginnings.first, bytes + part), in_place(beginnings.second, bytes + part + 1)),
                in_place(beginnings.third, bytes + part + 2));
            masks.begins |= bits(_mm256_cmpeq_epi8(shared, _mm256_setzero_si256()));
        }
        masks.begins = ~masks.begins;
        return masks;
    }

    // Few entries are above the threshold, so the cheapest test for any comes first.
    static uint64_t above_u16(const uint16_t* scores, uint16_t threshold) {
        const __m256i limit = _mm256_set1_epi16(static_cast<short>(threshold));
        const __m256i* v = reinterpret_cast<const __m256i*>(scores);
        const __m256i best = _mm256_max_epu16(_mm256_max_epu16(_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)),
                                              _mm256_max_epu16(_mm256_loadu_si256(v + 2), _mm256_loadu_si256(v + 3)));
        const __m256i over = _mm256_subs_epu16(best, limit);
        if (_mm256_testz_si256(over, over)) return 0;
        uint64_t mask = 0;
        for (size_t l = 0; l < scan_width; ++l) mask |= static_cast<uint64_t>(scores[l] > threshold) << l;
        return mask;
    }
    using Offsets = __m256i;
    static Offsets highest_offsets() { return _mm256_set1_epi16(-1); }
    static Offsets lower(Offsets lowest, const uint16_t* offsets) {
        const __m256i* v = reinterpret_cast<const __m256i*>(offsets);
        const __m256i low = _mm256_min_epu16(_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1));
        const __m256i high = _mm256_min_epu16(_mm256_loadu_si256(v + 2), _mm256_loadu_si256(v + 3));
        return _mm256_min_epu16(lowest, _mm256_min_epu16(low, high));
    }
    static bool any_below(Offsets lowest, uint16_t first) {
        const __m256i under = _mm256_subs_epu16(_mm256_set1_epi16(static_cast<short>(first)), lowest);
        return _mm256_testz_si256(under, under) == 0;
    }
    static uint64_t above_f32(const float* scores, float threshold) {
        const __m256 limit = _mm256_set1_ps(threshold);
        uint64_t mask = 0;
        for (size_t l = 0; l < scan_width; l += width) {
            const __m256 part = _mm256_cmp_ps(_mm256_loadu_ps(scores + l), limit, _CMP_NLE_UQ);
            mask |= static_cast<uint64_t>(_mm256_movemask_ps(part)) << l;
        }
        return mask;
    }
};

}  // namespace

extern const Level avx2_level = make_level<Avx2>("avx2");

}  // namespace lightir
