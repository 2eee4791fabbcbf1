// Compiled with AVX-512 F, BW, DQ, VL and VNNI; called only if the processor supports all of them.
#include <immintrin.h>

#include "level_loops.hpp"

namespace lightir {
namespace {

struct Avx512 {
    static constexpr size_t width = 16;
    using Floats = __m512;

    static Floats zero() { return _mm512_setzero_ps(); }
    static Floats set(float x) { return _mm512_set1_ps(x); }
    static Floats load_float(const float* p) { return _mm512_loadu_ps(p); }
    static Floats load_half(const uint16_t* p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static Floats load_bfloat16(const uint16_t* p) {
        const __m512i upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
        return _mm512_castsi512_ps(_mm512_slli_epi32(upper, 16));
    }
    static Floats load_int8(const int8_t* p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
    static Floats load_uint8(const uint8_t* p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
    static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
    static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static Floats magnitude(Floats a) { return _mm512_abs_ps(a); }
    static void store(float* p, Floats a) { _mm512_storeu_ps(p, a); }
    static void stream(float* p, Floats a) { _mm512_stream_ps(p, a); }
    static void clear_line(void* p) { _mm512_storeu_si512(p, _mm512_setzero_si512()); }

    // VNNI multiplies unsigned by signed: 128 is added to a row's bytes and subtracted again from the initial sums.
    static __m512i lowered(const int32_t* lanes) {
        return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(_mm512_loadu_si512(lanes), 7));
    }
    static __m512 coarse_lanes(const int8_t* row, const CoarseQuery& query) {
        const __m512i flip = _mm512_set1_epi8(-128);
        __m512i high = lowered(query.high_lanes), low = lowered(query.low_lanes);
        size_t j = 0;
        for (; j + 64 <= query.dim; j += 64) {
            const __m512i bytes = _mm512_xor_si512(_mm512_loadu_si512(row + j), flip);
            high = _mm512_dpbusd_epi32(high, bytes, _mm512_loadu_si512(query.high + j));
            low = _mm512_dpbusd_epi32(low, bytes, _mm512_loadu_si512(query.low + j));
        }
        if (j < query.dim) {
            const __m512i part = _mm512_maskz_loadu_epi8((uint64_t{1} << (query.dim - j)) - 1, row + j);
            const __m512i bytes = _mm512_xor_si512(part, flip);
            high = _mm512_dpbusd_epi32(high, bytes, _mm512_loadu_si512(query.high + j));
            low = _mm512_dpbusd_epi32(low, bytes, _mm512_loadu_si512(query.low + j));
        }
        return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 7), low));
    }
    static float coarse_dot(const int8_t* row, const CoarseQuery& query) {
        return _mm512_reduce_add_ps(coarse_lanes(row, query));
    }
    // Rows are read in memory order, which the hardware prefetcher follows; the lanes are added jointly.
    static constexpr bool has_coarse_dots = true;
    static void coarse_dots(const int8_t* rows, size_t row_bytes, const CoarseQuery& query, float* products) {
        const __m512 a = coarse_lanes(rows, query), b = coarse_lanes(rows + row_bytes, query);
        const __m512 c = coarse_lanes(rows + 2 * row_bytes, query), d = coarse_lanes(rows + 3 * row_bytes, query);
        const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        const __m512d first = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        const __m512d second = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        const __m512 sums = _mm512_add_ps(_mm512_castpd_ps(first), _mm512_castpd_ps(second));
        const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
        _mm_storeu_ps(products, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
    }
    static int32_t byte_product(const int8_t* row, const ByteQuery& query) {
        const __m512i flip = _mm512_set1_epi8(-128);
        __m512i sums = _mm512_setzero_si512();
        size_t j = 0;
        for (; j + 64 <= query.dim; j += 64) {
            const __m512i bytes = _mm512_xor_si512(_mm512_loadu_si512(row + j), flip);
            sums = _mm512_dpbusd_epi32(sums, bytes, _mm512_loadu_si512(query.values + j));
        }
        if (j < query.dim) {
            const __m512i part = _mm512_maskz_loadu_epi8((uint64_t{1} << (query.dim - j)) - 1, row + j);
            sums = _mm512_dpbusd_epi32(sums, _mm512_xor_si512(part, flip), _mm512_loadu_si512(query.values + j));
        }
        return _mm512_reduce_add_epi32(sums) - 128 * query.sum;
    }
    static constexpr bool reads_codes = true;
    // Sums of the even rows, with 256 times those of the odd rows, modulo 65,536, and sums of the odd rows: two numbers of 7
    // bits fit a byte. Column i of a block has the tables 2 i and 2 i + 1, and prefetches that of a later block.
    static void code_sums(const uint8_t* block, size_t n_columns, const uint8_t* tables, uint16_t* sums) {
        const auto table = [tables](size_t number) {
            return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(tables) + number));
        };
        const size_t ahead = codes_ahead(n_columns);
        const __m512i half = _mm512_set1_epi8(15);
        __m512i all = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
        for (size_t i = 0; i < n_columns; ++i) {
            const uint8_t* bytes = block + i * coded_block;
            __builtin_prefetch(bytes + ahead);
            const __m512i codes = _mm512_loadu_si512(bytes);
            const __m512i lower = _mm512_shuffle_epi8(table(2 * i), _mm512_and_si512(codes, half));
            const __m512i upper = _mm512_shuffle_epi8(table(2 * i + 1), _mm512_and_si512(_mm512_srli_epi16(codes, 4), half));
            const __m512i both = _mm512_add_epi8(lower, upper);
            all = _mm512_add_epi16(all, both);
            odd = _mm512_add_epi16(odd, _mm512_srli_epi16(both, 8));
        }
        const __m512i even = _mm512_sub_epi16(all, _mm512_slli_epi16(odd, 8));
        const __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
        const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
        _mm512_storeu_si512(sums, _mm512_permutex2var_epi64(low, first, high));
        _mm512_storeu_si512(sums + 32, _mm512_permutex2var_epi64(low, second, high));
    }

    // What a place of Beginnings has for the letters of 64 bytes: two look-ups in 16 entries each. The one whose index has
    // bit 7 set gives 0.
    static __m512i in_place(const uint8_t* place, const char* bytes) {
        const auto half = [&](size_t from) {
            return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(place + from)));
        };
        const __m512i low = _mm512_and_si512(_mm512_loadu_si512(bytes), _mm512_set1_epi8(Beginnings::n_low - 1));
        const __m512i index = _mm512_add_epi8(low, _mm512_set1_epi8(0x70));
        return _mm512_or_si512(_mm512_shuffle_epi8(half(0), index),
                               _mm512_shuffle_epi8(half(16), _mm512_xor_si512(index, _mm512_set1_epi8(-128))));
    }
    static TextMasks text_masks(const char* bytes, const Beginnings& beginnings) {
        const __m512i text = _mm512_loadu_si512(bytes);
        const auto within = [](__m512i from, char first, char n) {  // whether first <= from < first + n
            return _mm512_cmplt_epu8_mask(_mm512_sub_epi8(from, _mm512_set1_epi8(first)), _mm512_set1_epi8(n));
        };
        const auto equal = [&](char byte) { return _mm512_cmpeq_epi8_mask(text, _mm512_set1_epi8(byte)); };
        TextMasks masks;
        masks.words = within(_mm512_or_si512(text, _mm512_set1_epi8(0x20)), 'a', 26) | within(text, '0', 10) | equal('_');
        masks.blanks = within(text, 9, 5) | within(text, 28, 4) | equal(' ');
        masks.others = _mm512_movepi8_mask(text);
        const __m512i shared = _mm512_and_si512(in_place(beginnings.first, bytes), in_place(beginnings.second, bytes + 1));
        masks.begins = _mm512_test_epi8_mask(shared, in_place(beginnings.third, bytes + 2));
        return masks;
    }

    static uint64_t above_u16(const uint16_t* scores, uint16_t threshold) {
        const __m512i limit = _mm512_set1_epi16(static_cast<short>(threshold));
        const __m512i low = _mm512_loadu_si512(scores), high = _mm512_loadu_si512(scores + 32);
        if (_mm512_cmpgt_epu16_mask(_mm512_max_epu16(low, high), limit) == 0) return 0;
        const uint64_t mask = _mm512_cmpgt_epu16_mask(high, limit);
        return mask << 32 | _mm512_cmpgt_epu16_mask(low, limit);
    }
    using Offsets = __m512i;
    static Offsets highest_offsets() { return _mm512_set1_epi16(-1); }
    static Offsets lower(Offsets lowest, const uint16_t* offsets) {
        return _mm512_min_epu16(lowest, _mm512_min_epu16(_mm512_loadu_si512(offsets), _mm512_loadu_si512(offsets + 32)));
    }
    static bool any_below(Offsets lowest, uint16_t first) {
        return _mm512_cmplt_epu16_mask(lowest, _mm512_set1_epi16(static_cast<short>(first))) != 0;
    }
    static uint64_t above_f32(const float* scores, float threshold) {
        const __m512 limit = _mm512_set1_ps(threshold);
        uint64_t mask = 0;
        for (size_t l = 0; l < scan_width; l += width) {
            const uint64_t part = _mm512_cmp_ps_mask(_mm512_loadu_ps(scores + l), limit, _CMP_NLE_UQ);
            mask |= part << l;
        }
        return mask;
    }
};

}  // namespace

extern const Level avx512_level = make_level<Avx512>("avx512");

}  // namespace lightir
