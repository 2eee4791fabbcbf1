// Compiled with AMX tiles of bfloat16 and AVX-512; called only if the processor and the system support both.
#include <immintrin.h>

#include "encoder_steps.hpp"

namespace lightir {
namespace {

struct TileSettings {
    uint8_t palette, start, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
// In memory, not on the stack: gcc's _tile_loadconfig says that it reads eight bytes, so that the others could be left out.
alignas(64) const TileSettings settings = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// gcc's _tile_loadd does not say that it reads memory: what was written before must not be delayed beyond it.
inline void finish_writes() { __asm__ volatile("" ::: "memory"); }

struct AmxTiles {
    static void configure() { _tile_loadconfig(&settings); }

    // (32, 32 * n_blocks) rows times a panel: (32, 32) sums.
    static void product32(const Bfloat16* rows, size_t stride, const Bfloat16* panel, size_t n_blocks, float* sums) {
        const Bfloat16* lower = rows + tile * stride;
        const size_t row_bytes = stride * sizeof(Bfloat16);
        finish_writes();
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (size_t i = 0; i < n_blocks; ++i, panel += 1024) {
            _tile_loadd(4, rows + i * 32, row_bytes);
            _tile_loadd(6, panel, 64);
            _tile_loadd(7, panel + 512, 64);
            _tile_loadd(5, lower + i * 32, row_bytes);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, sums, 128);
        _tile_stored(1, sums + 16, 128);
        _tile_stored(2, sums + 512, 128);
        _tile_stored(3, sums + 528, 128);
    }

    // (16, 32 * n_blocks) rows times a panel: (16, 32) sums with a stride.
    static void product16(const Bfloat16* rows, size_t stride, const Bfloat16* panel, size_t n_blocks, float* sums,
                          size_t sums_stride) {
        finish_writes();
        _tile_zero(0);
        _tile_zero(1);
        for (size_t i = 0; i < n_blocks; ++i, panel += 1024) {
            _tile_loadd(4, rows + i * 32, stride * sizeof(Bfloat16));
            _tile_loadd(6, panel, 64);
            _tile_loadd(7, panel + 512, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
        }
        _tile_stored(0, sums, sums_stride * sizeof(float));
        _tile_stored(1, sums + 16, sums_stride * sizeof(float));
    }
};

}  // namespace

void encode_texts_tiles(const EncoderWeights& encoder, const uint32_t* ids, const int64_t* offsets, size_t n_texts, float* states) {
    encode_texts<AmxTiles>(encoder, ids, offsets, n_texts, states);
    _tile_release();
}

}  // namespace lightir
