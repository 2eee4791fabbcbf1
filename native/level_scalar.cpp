// Plain C++ for any processor; the compiler may use the vector instructions of its baseline.
#include "level_loops.hpp"

namespace lightir {
namespace {

struct Scalar {
    static constexpr size_t width = 4;
    struct Floats {
        float lane[width];
    };

    template <typename F>
    static Floats each(F value_at) {
        Floats out;
        for (size_t l = 0; l < width; ++l) out.lane[l] = value_at(l);
        return out;
    }
    static Floats zero() { return set(0.0f); }
    static Floats set(float x) {
        return each([&](size_t) { return x; });
    }
    static Floats load_float(const float* p) {
        return each([&](size_t l) { return p[l]; });
    }
    static Floats load_half(const uint16_t* p) {
        return each([&](size_t l) { return half_to_float(p[l]); });
    }
    static Floats load_bfloat16(const uint16_t* p) {
        return each([&](size_t l) { return bfloat16_to_float(p[l]); });
    }
    static Floats load_int8(const int8_t* p) {
        return each([&](size_t l) { return static_cast<float>(p[l]); });
    }
    static Floats load_uint8(const uint8_t* p) {
        return each([&](size_t l) { return static_cast<float>(p[l]); });
    }
    static Floats add(const Floats& a, const Floats& b) {
        return each([&](size_t l) { return a.lane[l] + b.lane[l]; });
    }
    static Floats mul(const Floats& a, const Floats& b) {
        return each([&](size_t l) { return a.lane[l] * b.lane[l]; });
    }
    static Floats magnitude(const Floats& a) {
        return each([&](size_t l) { return __builtin_fabsf(a.lane[l]); });
    }
    static void store(float* p, const Floats& a) {
        for (size_t l = 0; l < width; ++l) p[l] = a.lane[l];
    }
    static void stream(float* p, const Floats& a) { store(p, a); }
    static void clear_line(void* p) { __builtin_memset(p, 0, 64); }
    static int32_t byte_product(const int8_t* row, const ByteQuery& query) {
        int32_t total = 0;
        for (size_t j = 0; j < query.dim; ++j) total += row[j] * query.values[j];
        return total;
    }

    static constexpr bool has_coarse_dots = false, reads_codes = false;
    static float coarse_dot(const int8_t* row, const CoarseQuery& query) {
        constexpr size_t strip = 256;
        float total = 0.0f;
        for (size_t first = 0; first < query.dim; first += strip) {
            const size_t n = query.dim - first < strip ? query.dim - first : strip;
            int32_t sum = 0;
            for (size_t j = 0; j < n; ++j) sum += row[first + j] * query.values[first + j];
            total += static_cast<float>(sum);
        }
        return total;
    }

    // Few entries are above the threshold, so a loop that compilers vectorize (flags as wide as scores) first tests for any.
    template <typename Flag, typename Score, typename IsAbove>
    static uint64_t mask_of(const Score* scores, IsAbove is_above) {
        Flag any = 0;
        for (size_t l = 0; l < scan_width; ++l) any = static_cast<Flag>(any | static_cast<Flag>(is_above(scores[l])));
        uint64_t mask = 0;
        for (size_t l = 0; any != 0 && l < scan_width; ++l) mask |= static_cast<uint64_t>(is_above(scores[l])) << l;
        return mask;
    }
    static uint64_t above_u16(const uint16_t* scores, uint16_t threshold) {
        return mask_of<uint16_t>(scores, [=](uint16_t score) { return score > threshold; });
    }
    struct Offsets {
        uint16_t lane[8];
    };
    static Offsets highest_offsets() { return {{65535, 65535, 65535, 65535, 65535, 65535, 65535, 65535}}; }
    static Offsets lower(Offsets lowest, const uint16_t* offsets) {
        for (size_t l = 0; l < fetch_step; ++l) {
            if (offsets[l] < lowest.lane[l % 8]) lowest.lane[l % 8] = offsets[l];
        }
        return lowest;
    }
    static bool any_below(const Offsets& lowest, uint16_t first) {
        bool any = false;
        for (const uint16_t offset : lowest.lane) any |= offset < first;
        return any;
    }
    static TextMasks text_masks(const char* bytes, const Beginnings& beginnings) {
        return baseline_text_masks(bytes, beginnings);
    }
    static uint64_t above_f32(const float* scores, float threshold) {
        return mask_of<uint32_t>(scores, [=](float score) { return !(score <= threshold); });
    }
};

}  // namespace

extern const Level scalar_level = make_level<Scalar>("scalar");

}  // namespace lightir
