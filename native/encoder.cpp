#include "encoder.hpp"

#include "dispatch.hpp"
#include "encoder_steps.hpp"
#include "half.hpp"

namespace lightir {
namespace {

// What the instructions of tiles do, one number at a time.
struct PlainTiles {
    static void configure() {}

    template <typename Number, class Meanwhile>
    static void product(const Number* rows, size_t stride, const Number* panel, size_t n_steps, Sum<Number>* sums, size_t sums_stride,
                        const Meanwhile& meanwhile) {
        const auto number = [](Number x) {
            if constexpr (std::is_same_v<Number, int8_t>) return int32_t{x};
            else return bfloat16_to_float(x);
        };
        for (size_t i = 0; i < panel_columns; ++i) {
            for (size_t c = 0; c < panel_columns; ++c) {
                Sum<Number> sum = 0;
                for (size_t k = 0; k < n_steps * block_rows<Number>; ++k) {
                    sum += number(rows[i * stride + k]) * number(panel[panel_index<Number>(0, k, c)]);
                }
                sums[i * sums_stride + c] = sum;
            }
        }
        for (size_t i = 0; i < n_steps; ++i) meanwhile(i);
    }
};

}  // namespace

// Rounds to the nearest bfloat16, ties to even.
static Bfloat16 to_bfloat16(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return static_cast<Bfloat16>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static int8_t to_int8(float value, float scale) {
    return scale == 0.0f ? int8_t{0} : static_cast<int8_t>(std::lrintf(value / scale));
}

template <typename Number>
PanelMatrix<Number>::PanelMatrix(const float* weight, size_t n_outer, size_t n_inner)
    : inner(padded(n_inner, block_rows<Number>)), outer(padded(n_outer)), panels(inner * outer) {
    if (std::is_same_v<Number, int8_t>) scales.resize(outer);
    for (size_t c = 0; c < n_outer; ++c) {
        const float* column = weight + c * n_inner;
        if constexpr (std::is_same_v<Number, int8_t>) {
            float largest = 0.0f;
            for (size_t k = 0; k < n_inner; ++k) largest = std::max(largest, std::fabs(column[k]));
            scales[c] = largest / 127.0f;
        }
        for (size_t k = 0; k < n_inner; ++k) {
            Number& number = panels[panel_index<Number>(inner, k, c)];
            if constexpr (std::is_same_v<Number, int8_t>) number = to_int8(column[k], scales[c]);
            else number = to_bfloat16(column[k]);
        }
    }
}
template struct PanelMatrix<Bfloat16>;
template struct PanelMatrix<int8_t>;

void encode_texts_plain(const EncoderWeights& encoder, const uint32_t* ids, const int64_t* offsets, size_t n_texts, float* states) {
    encode_texts<PlainTiles>(encoder, ids, offsets, n_texts, states);
}

#ifdef LIGHTIR_TILES
void encode_texts_tiles(const EncoderWeights&, const uint32_t* ids, const int64_t* offsets, size_t n_texts, float* states);
#endif

EncodeTexts tiles_of_processor() {
#ifdef LIGHTIR_TILES
    if (has_bfloat16_tiles()) return encode_texts_tiles;
#endif
    return nullptr;
}

}  // namespace lightir
