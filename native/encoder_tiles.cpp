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

    // 32 rows with a stride times a panel of n_steps blocks: (32, 32) sums with a stride. meanwhile(step) runs after
    // each block's products.
    template <typename Number, class Meanwhile>
    static void product(const Number* rows, size_t stride, const Number* panel, size_t n_steps, Sum<Number>* sums, size_t sums_stride,
                        const Meanwhile& meanwhile) {
        const Number* lower = rows + tile * stride;
        const size_t row_bytes = stride * sizeof(Number);
        finish_writes();
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (size_t i = 0; i < n_steps; ++i, panel += 2048 / sizeof(Number)) {
            _tile_loadd(4, rows + i * block_rows<Number>, row_bytes);
            _tile_loadd(6, panel, 64);
            _tile_loadd(7, panel + 1024 / sizeof(Number), 64);
            _tile_loadd(5, lower + i * block_rows<Number>, row_bytes);
            if constexpr (std::is_same_v<Number, int8_t>) {
                _tile_dpbssd(0, 4, 6);
                _tile_dpbssd(1, 4, 7);
                _tile_dpbssd(2, 5, 6);
                _tile_dpbssd(3, 5, 7);
            } else {
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            meanwhile(i);
        }
        const size_t sums_bytes = sums_stride * sizeof(float);
        Sum<Number>* lower_sums = sums + tile * sums_stride;
        _tile_stored(0, sums, sums_bytes);
        _tile_stored(1, sums + tile, sums_bytes);
        _tile_stored(2, lower_sums, sums_bytes);
        _tile_stored(3, lower_sums + tile, sums_bytes);
    }
};

}  // namespace

void encode_texts_tiles(const EncoderWeights& encoder, const uint32_t* ids, const int64_t* offsets, size_t n_texts, float* states) {
    encode_texts<AmxTiles>(encoder, ids, offsets, n_texts, states);
    _tile_release();
}

}  // namespace lightir
