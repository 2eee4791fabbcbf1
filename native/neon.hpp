// The vector type of the levels of aarch64, whose every processor has NEON. One private copy per dispatch level.
#pragma once

#include <arm_neon.h>

#include "level_loops.hpp"

namespace lightir {
namespace {

struct Neon {
    static constexpr size_t width = 8;
    using Floats = float32x4x2_t;  // two registers, so that eight bytes or halves fill one vector

    static Floats zero() { return set(0.0f); }
    static Floats set(float x) { return {{vdupq_n_f32(x), vdupq_n_f32(x)}}; }
    static Floats load_float(const float* p) { return {{vld1q_f32(p), vld1q_f32(p + 4)}}; }
    static Floats load_half(const uint16_t* p) {
        const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(p));
        return {{vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)}};
    }
    static Floats load_bfloat16(const uint16_t* p) {
        const uint16x8_t upper = vld1q_u16(p);
        return {{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(upper), 16)),
                 vreinterpretq_f32_u32(vshll_high_n_u16(upper, 16))}};
    }
    static Floats load_int8(const int8_t* p) {
        const int16x8_t wide = vmovl_s8(vld1_s8(p));
        return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))}};
    }
    static Floats load_uint8(const uint8_t* p) {
        const uint16x8_t wide = vmovl_u8(vld1_u8(p));
        return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_high_u16(wide))}};
    }
    static Floats add(Floats a, Floats b) { return {{vaddq_f32(a.val[0], b.val[0]), vaddq_f32(a.val[1], b.val[1])}}; }
    static Floats mul(Floats a, Floats b) { return {{vmulq_f32(a.val[0], b.val[0]), vmulq_f32(a.val[1], b.val[1])}}; }
    static Floats magnitude(Floats a) { return {{vabsq_f32(a.val[0]), vabsq_f32(a.val[1])}}; }
    static void store(float* p, Floats a) {
        vst1q_f32(p, a.val[0]);
        vst1q_f32(p + 4, a.val[1]);
    }
    static void stream(float* p, Floats a) { store(p, a); }
    static void clear_line(void* p) {
        for (size_t byte = 0; byte < 64; byte += 16) vst1q_u8(static_cast<uint8_t*>(p) + byte, vdupq_n_u8(0));
    }

    static int32_t byte_product(const int8_t* row, const ByteQuery& query) {
        int32x4_t sums = vdupq_n_s32(0);
        size_t j = 0;
        for (; j + 16 <= query.dim; j += 16) {
            const int8x16_t bytes = vld1q_s8(row + j), values = vld1q_s8(query.values + j);
            sums = vpadalq_s16(sums, vmull_s8(vget_low_s8(bytes), vget_low_s8(values)));
            sums = vpadalq_s16(sums, vmull_high_s8(bytes, values));
        }
        int32_t total = 0;
        for (; j < query.dim; ++j) total += row[j] * query.values[j];
        return total + vaddvq_s32(sums);
    }

    static constexpr bool reads_codes = true;
    // Column i of a block has the tables 2 i and 2 i + 1. Each column prefetches that of a later block.
    static void code_sums(const uint8_t* block, size_t n_columns, const uint8_t* tables, uint16_t* sums) {
        constexpr size_t lanes = 16, n_parts = coded_block / lanes;
        const uint8x16_t half = vdupq_n_u8(15);
        uint16x8_t low[n_parts], high[n_parts];
        for (size_t part = 0; part < n_parts; ++part) low[part] = high[part] = vdupq_n_u16(0);
        const size_t ahead = codes_ahead(n_columns);
        for (size_t i = 0; i < n_columns; ++i) {
            const uint8_t* bytes = block + i * coded_block;
            __builtin_prefetch(bytes + ahead);
            const uint8x16_t lower = vld1q_u8(tables + 2 * i * lanes), upper = vld1q_u8(tables + (2 * i + 1) * lanes);
            for (size_t part = 0; part < n_parts; ++part) {
                const uint8x16_t codes = vld1q_u8(bytes + part * lanes);
                // Two numbers of 7 bits fit a byte.
                const uint8x16_t both = vaddq_u8(vqtbl1q_u8(lower, vandq_u8(codes, half)), vqtbl1q_u8(upper, vshrq_n_u8(codes, 4)));
                low[part] = vaddw_u8(low[part], vget_low_u8(both));
                high[part] = vaddw_high_u8(high[part], both);
            }
        }
        for (size_t part = 0; part < n_parts; ++part) {
            vst1q_u16(sums + part * lanes, low[part]);
            vst1q_u16(sums + part * lanes + lanes / 2, high[part]);
        }
    }

    static constexpr bool has_coarse_dots = false;
    // Four registers of sums: with 16 lanes each has at most 512 products, which fit 32 bits.
    static float coarse_dot(const int8_t* row, const CoarseQuery& query) {
        int32x4_t sums[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
        size_t j = 0;
        for (; j + 16 <= query.dim; j += 16) {
            const int8x16_t bytes = vld1q_s8(row + j);
            const int16x8_t first = vmovl_s8(vget_low_s8(bytes)), second = vmovl_high_s8(bytes);
            const int16x8_t a = vld1q_s16(query.values + j), b = vld1q_s16(query.values + j + 8);
            sums[0] = vmlal_s16(sums[0], vget_low_s16(first), vget_low_s16(a));
            sums[1] = vmlal_high_s16(sums[1], first, a);
            sums[2] = vmlal_s16(sums[2], vget_low_s16(second), vget_low_s16(b));
            sums[3] = vmlal_high_s16(sums[3], second, b);
        }
        int32_t rest = 0;
        for (; j < query.dim; ++j) rest += row[j] * query.values[j];
        const float32x4_t low = vaddq_f32(vcvtq_f32_s32(sums[0]), vcvtq_f32_s32(sums[1]));
        const float32x4_t high = vaddq_f32(vcvtq_f32_s32(sums[2]), vcvtq_f32_s32(sums[3]));
        return vaddvq_f32(vaddq_f32(low, high)) + static_cast<float>(rest);
    }

    // Few entries are above the threshold, so the cheapest test for any comes first.
    static uint64_t above_u16(const uint16_t* scores, uint16_t threshold) {
        uint16x8_t best = vld1q_u16(scores);
        for (size_t l = 8; l < scan_width; l += 8) best = vmaxq_u16(best, vld1q_u16(scores + l));
        if (vmaxvq_u16(best) <= threshold) return 0;
        uint64_t mask = 0;
        for (size_t l = 0; l < scan_width; ++l) mask |= static_cast<uint64_t>(scores[l] > threshold) << l;
        return mask;
    }
    using Offsets = uint16x8_t;
    static Offsets highest_offsets() { return vdupq_n_u16(65535); }
    static Offsets lower(Offsets lowest, const uint16_t* offsets) {
        for (size_t l = 0; l < fetch_step; l += 8) lowest = vminq_u16(lowest, vld1q_u16(offsets + l));
        return lowest;
    }
    static bool any_below(Offsets lowest, uint16_t first) { return vminvq_u16(lowest) < first; }
    // Comparisons with NaN are false: such a score is "not at or below".
    static TextMasks text_masks(const char* bytes, const Beginnings& beginnings) {
        return baseline_text_masks(bytes, beginnings);
    }
    static uint64_t above_f32(const float* scores, float threshold) {
        const float32x4_t limit = vdupq_n_f32(threshold);
        uint32x4_t all = vcleq_f32(vld1q_f32(scores), limit);
        for (size_t l = 4; l < scan_width; l += 4) all = vandq_u32(all, vcleq_f32(vld1q_f32(scores + l), limit));
        if (vminvq_u32(all) != 0) return 0;
        uint64_t mask = 0;
        for (size_t l = 0; l < scan_width; ++l) mask |= static_cast<uint64_t>(!(scores[l] <= threshold)) << l;
        return mask;
    }
};

}  // namespace
}  // namespace lightir
