#include "encoder.hpp"

#include "dispatch.hpp"
#include "encoder_steps.hpp"
#include "half.hpp"

namespace lightir {
namespace {

// What the instructions of tiles do, one number at a time.
struct PlainTiles {
    static void configure() {}

    static void product(const Bfloat16* rows, size_t n_rows, size_t stride, const Bfloat16* panel, size_t n_blocks,
                        float* sums, size_t sums_stride) {
        for (size_t i = 0; i < n_rows; ++i) {
            for (size_t c = 0; c < panel_columns; ++c) {
                float sum = 0.0f;
                for (size_t k = 0; k < n_blocks * panel_columns; ++k) {
                    sum += bfloat16_to_float(rows[i * stride + k]) * bfloat16_to_float(panel[panel_index(0, k, c)]);
                }
                sums[i * sums_stride + c] = sum;
            }
        }
    }
    static void product32(const Bfloat16* rows, size_t stride, const Bfloat16* panel, size_t n_blocks, float* sums) {
        product(rows, 2 * tile, stride, panel, n_blocks, sums, panel_columns);
    }
    static void product16(const Bfloat16* rows, size_t stride, const Bfloat16* panel, size_t n_blocks, float* sums,
                          size_t sums_stride) {
        product(rows, tile, stride, panel, n_blocks, sums, sums_stride);
    }
};

}  // namespace

// Rounds to the nearest bfloat16, ties to even.
static Bfloat16 to_bfloat16(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return static_cast<Bfloat16>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

PanelMatrix::PanelMatrix(const float* weight, size_t n_outer, size_t n_inner)
    : inner(padded(n_inner)), outer(padded(n_outer)), panels(inner * outer) {
    for (size_t c = 0; c < n_outer; ++c) {
        for (size_t k = 0; k < n_inner; ++k) {
            panels[panel_index(inner, k, c)] = to_bfloat16(weight[c * n_inner + k]);
        }
    }
}

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
