// Compiled with the dot products of Armv8.2; called only if the processor supports them.
#include "neon.hpp"

namespace lightir {
namespace {

struct Dotprod : Neon {
    // Products with the high and the low bytes of the query, each exact, are added after their conversion to floats.
    static float joined(int32_t high, int32_t low) { return 128.0f * static_cast<float>(high) + static_cast<float>(low); }
    // The query is padded with zeros, a row is not.
    static int8x16_t last_bytes(const int8_t* row, size_t n) {
        int8_t bytes[16] = {};
        __builtin_memcpy(bytes, row, n);
        return vld1q_s8(bytes);
    }
    static float coarse_dot(const int8_t* row, const CoarseQuery& query) {
        int32x4_t high = vdupq_n_s32(0), low = vdupq_n_s32(0);
        for (size_t j = 0; j < query.dim; j += 16) {
            const int8x16_t bytes = j + 16 <= query.dim ? vld1q_s8(row + j) : last_bytes(row + j, query.dim - j);
            high = vdotq_s32(high, bytes, vld1q_s8(query.high + j));
            low = vdotq_s32(low, bytes, vld1q_s8(query.low + j));
        }
        return joined(vaddvq_s32(high), vaddvq_s32(low));
    }
    static int32_t byte_product(const int8_t* row, const ByteQuery& query) {
        int32x4_t sums = vdupq_n_s32(0);
        for (size_t j = 0; j < query.dim; j += 16) {
            const int8x16_t bytes = j + 16 <= query.dim ? vld1q_s8(row + j) : last_bytes(row + j, query.dim - j);
            sums = vdotq_s32(sums, bytes, vld1q_s8(query.values + j));
        }
        return vaddvq_s32(sums);
    }
    // The bytes of the query are read once for four rows.
    static constexpr bool has_coarse_dots = true;
    static void coarse_dots(const int8_t* rows, size_t row_bytes, const CoarseQuery& query, float* products) {
        int32x4_t high[4], low[4];
        for (size_t r = 0; r < 4; ++r) high[r] = low[r] = vdupq_n_s32(0);
        for (size_t j = 0; j < query.dim; j += 16) {
            const int8x16_t query_high = vld1q_s8(query.high + j), query_low = vld1q_s8(query.low + j);
            const bool whole = j + 16 <= query.dim;
            for (size_t r = 0; r < 4; ++r) {
                const int8_t* from = rows + r * row_bytes + j;
                const int8x16_t bytes = whole ? vld1q_s8(from) : last_bytes(from, query.dim - j);
                high[r] = vdotq_s32(high[r], bytes, query_high);
                low[r] = vdotq_s32(low[r], bytes, query_low);
            }
        }
        for (size_t r = 0; r < 4; ++r) products[r] = joined(vaddvq_s32(high[r]), vaddvq_s32(low[r]));
    }
};

}  // namespace

extern const Level dotprod_level = make_level<Dotprod>("dotprod");

}  // namespace lightir
