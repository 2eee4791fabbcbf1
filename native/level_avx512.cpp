// Compiled with AVX-512 F, BW, DQ, VL and VNNI; entered only where the processor has them all.
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
    static void store(float* p, Floats a) { _mm512_storeu_ps(p, a); }
    static void stream(float* p, Floats a) { _mm512_stream_ps(p, a); }
    static void clear_line(void* p) { _mm512_storeu_si512(p, _mm512_setzero_si512()); }

    // VNNI multiplies unsigned by signed: a row's bytes get 128 added, and the sums start that much lower.
    static float coarse_dot(const int8_t* row, const CoarseQuery& query) {
        const __m512i flip = _mm512_set1_epi8(-128);
        __m512i high = _mm512_slli_epi32(_mm512_loadu_si512(query.high_lanes), 7);
        __m512i low = _mm512_slli_epi32(_mm512_loadu_si512(query.low_lanes), 7);
        high = _mm512_sub_epi32(_mm512_setzero_si512(), high);
        low = _mm512_sub_epi32(_mm512_setzero_si512(), low);
        for (size_t j = 0; j < query.dim; j += 64) {
            const size_t left = query.dim - j;
            const __m512i part = left >= 64 ? _mm512_loadu_si512(row + j)
                                            : _mm512_maskz_loadu_epi8((uint64_t{1} << left) - 1, row + j);
            const __m512i bytes = _mm512_xor_si512(part, flip);
            high = _mm512_dpbusd_epi32(high, bytes, _mm512_loadu_si512(query.high + j));
            low = _mm512_dpbusd_epi32(low, bytes, _mm512_loadu_si512(query.low + j));
        }
        return _mm512_reduce_add_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 7), low)));
    }
    static uint64_t above_u16(const uint16_t* scores, uint16_t threshold) {
        const __m512i limit = _mm512_set1_epi16(static_cast<short>(threshold));
        const __m512i low = _mm512_loadu_si512(scores), high = _mm512_loadu_si512(scores + 32);
        if (_mm512_cmpgt_epu16_mask(_mm512_max_epu16(low, high), limit) == 0) return 0;
        const uint64_t mask = _mm512_cmpgt_epu16_mask(high, limit);
        return mask << 32 | _mm512_cmpgt_epu16_mask(low, limit);
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
