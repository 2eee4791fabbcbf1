// Compiled with AVX-512 F, BW, DQ and VL; entered only where the processor has them all.
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
    static Floats load_int8(const int8_t* p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
    static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
    static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static void store(float* p, Floats a) { _mm512_storeu_ps(p, a); }

    static bool any_above_u16(const uint16_t* scores, uint16_t threshold) {
        const __m512i best = _mm512_max_epu16(_mm512_loadu_si512(scores), _mm512_loadu_si512(scores + 32));
        return _mm512_cmpgt_epu16_mask(best, _mm512_set1_epi16(static_cast<short>(threshold))) != 0;
    }
    static bool any_above_f32(const float* scores, float threshold) {
        const __m512 limit = _mm512_set1_ps(threshold);
        unsigned any = 0;
        for (size_t l = 0; l < scan_width; l += width) {
            any |= _mm512_cmp_ps_mask(_mm512_loadu_ps(scores + l), limit, _CMP_NLE_UQ);
        }
        return any != 0;
    }
};

}  // namespace

extern const Level avx512_level = make_level<Avx512>("avx512");

}  // namespace lightir
