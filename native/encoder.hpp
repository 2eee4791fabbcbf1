// Encoders of the BERT family (Devlin et al., NAACL 2019) on bfloat16 tiles: term ids in, states out.
//
// The texts of a batch lie one after the other, without padding between them, so that the products of all layers see
// one matrix of tokens. Products round their inputs to bfloat16 and sum in float; residuals, norms and softmax are
// float. A layer of integers rounds the inputs of its four products further, to -127 to 127 times a scale of each token
// and of each column of weights; their sums are exact.
//
// A product's right side is kept in panels: for every 32 columns, the 2 KB blocks of 32 inner rows each (64 if they are
// integers), a block being two tiles of 16 columns, whose row i holds the inner rows 2 i and 2 i + 1 (integers: 4 i to
// 4 i + 3) of each column side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "arrays.hpp"

namespace lightir {

using Bfloat16 = uint16_t;

// Memory that starts at a cache line, which no row of a tile then straddles.
template <typename T>
struct LineAllocator {
    using value_type = T;
    static constexpr std::align_val_t line{64};

    LineAllocator() = default;
    template <typename U>
    LineAllocator(const LineAllocator<U>&) {}
    T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), line)); }
    void deallocate(T* p, size_t) { ::operator delete(p, line); }
    bool operator==(const LineAllocator&) const { return true; }
    bool operator!=(const LineAllocator&) const { return false; }
};
template <typename T>
using Lines = std::vector<T, LineAllocator<T>>;

constexpr size_t tile = 16;  // rows of a tile, and columns of a tile of sums
constexpr size_t panel_columns = 32;

// The inner rows of a block, and those that lie side by side in a row of a tile.
template <typename Number>
constexpr size_t block_rows = 64 / sizeof(Number);
template <typename Number>
constexpr size_t side_by_side = 4 / sizeof(Number);

// The weights of a layer from `inner` to `outer` numbers, padded to whole blocks and panels. Number is Bfloat16 or int8_t.
template <typename Number>
struct PanelMatrix {
    size_t inner = 0;
    size_t outer = 0;
    Lines<Number> panels;  // (outer / 32, inner / block_rows, 2, 16, 16, side_by_side)
    Lines<float> scales;   // (outer,) of integers

    // weight: (outer, inner) floats by rows.
    PanelMatrix(const float* weight, size_t n_outer, size_t n_inner);
    const Number* panel(size_t i) const { return panels.data() + i * inner * panel_columns; }
};

struct NormWeights {
    const float* weight = nullptr;  // (hidden,)
    const float* bias = nullptr;
};

template <typename Number>
struct EncoderLayer {
    PanelMatrix<Number> qkv, attended, wide, narrow;
    const float *qkv_bias, *attended_bias, *wide_bias, *narrow_bias;
    NormWeights attention_norm, output_norm;
};

constexpr size_t activation_terms = 7;

// The activation x * (1/2 + u * (c_0 + c_1 u^2 + c_2 u^4 + ...)), where u is x, at most `limit` in size.
struct Activation {
    float limit = 0.0f;
    float coefficients[activation_terms] = {};
};

struct EncoderWeights {
    size_t hidden = 0;     // a multiple of 32
    size_t n_heads = 0;
    size_t head_size = 0;  // a multiple of 32, padded with zeros
    float score_scale = 1.0f;
    float epsilon = 0.0f;
    const float* words = nullptr;      // (n_words, hidden)
    const float* positions = nullptr;  // (n_positions, hidden)
    NormWeights embedding_norm;
    Activation activation;
    std::vector<EncoderLayer<Bfloat16>> layers;
    std::vector<EncoderLayer<int8_t>> integer_layers;  // run after the others
};

// Writes the states, (tokens, hidden) floats, of texts whose ids lie from offsets[i] to offsets[i + 1]. The ids are below
// the number of words, and no text is longer than the table of positions.
using EncodeTexts = void (*)(const EncoderWeights&, const uint32_t* ids, const int64_t* offsets, size_t n_texts, float* states);

// By plain loops: what tiles do, one number at a time.
void encode_texts_plain(const EncoderWeights&, const uint32_t* ids, const int64_t* offsets, size_t n_texts, float* states);

// By AMX tiles, if has_bfloat16_tiles(); else null.
EncodeTexts tiles_of_processor();

}  // namespace lightir
