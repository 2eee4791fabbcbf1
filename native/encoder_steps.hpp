// The steps of an encoder over a kind of tiles; included by one source file for each instruction set.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "encoder.hpp"

namespace lightir {
namespace {  // one private copy for each instruction set

constexpr size_t lanes = 16;

// Vectors of the compiler's: instructions of the source file's set, or loops where it has none so wide.
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Words __attribute__((vector_size(64)));
typedef Bfloat16 Halves __attribute__((vector_size(32)));

inline Floats load(const float* p) {
    Floats values;
    __builtin_memcpy(&values, p, sizeof(values));
    return values;
}
inline void store(float* p, Floats values) { __builtin_memcpy(p, &values, sizeof(values)); }
inline Floats all(float value) { return value - Floats{}; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline Floats smaller(Floats a, Floats b) { return a < b ? a : b; }

// Rounds to the nearest bfloat16, ties to even.
inline void store_rounded(Bfloat16* p, Floats values) {
#ifdef __AVX512BF16__
    const __m256bh halves = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(values));
#else
    Words bits;
    __builtin_memcpy(&bits, &values, sizeof(bits));
    const Halves halves = __builtin_convertvector((bits + 0x7fff + (bits >> 16 & 1)) >> 16, Halves);
#endif
    __builtin_memcpy(p, &halves, sizeof(halves));
}

// e^x for -87 <= x <= 0, within 1.1e-4 of itself, which bfloat16 cannot tell apart: 2^n times a polynomial of the remainder.
inline Floats exponential(Floats x) {
    x = larger(x, all(-87.0f)) * 1.44269504f;
    constexpr float round_by = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const Floats shifted = x + round_by;
    const Floats r = x - (shifted - round_by);
    const Floats p = ((all(0.05500861f) * r + 0.24221022f) * r + 0.69328288f) * r + 1.0f;
    Words power, bits;
    __builtin_memcpy(&power, &shifted, sizeof(power));
    __builtin_memcpy(&bits, &p, sizeof(bits));
    bits += power << 23;
    Floats result;
    __builtin_memcpy(&result, &bits, sizeof(result));
    return result;
}

inline Floats activated(Floats x, const Activation& activation) {
    const Floats u = smaller(larger(x, all(-activation.limit)), all(activation.limit)), square = u * u;
    Floats p = all(activation.coefficients[activation_terms - 1]);
    for (size_t i = activation_terms - 1; i-- > 0;) p = p * square + activation.coefficients[i];
    return x * (0.5f + u * p);
}

inline float sum_of(Floats values) {
    float sum = 0.0f;
    for (size_t l = 0; l < lanes; ++l) sum += values[l];
    return sum;
}

// Layer norm of a row of n floats, in place, and its copy in bfloat16.
inline void normalize(float* row, size_t n, NormWeights norm, float epsilon, Bfloat16* rounded) {
    Floats sums{}, squares{};
    for (size_t i = 0; i < n; i += lanes) sums += load(row + i);
    const float mean = sum_of(sums) / static_cast<float>(n);
    for (size_t i = 0; i < n; i += lanes) {
        const Floats centered = load(row + i) - mean;
        squares += centered * centered;
    }
    const float scale = 1.0f / std::sqrt(sum_of(squares) / static_cast<float>(n) + epsilon);
    for (size_t i = 0; i < n; i += lanes) {
        const Floats values = (load(row + i) - mean) * scale * load(norm.weight + i) + load(norm.bias + i);
        store(row + i, values);
        store_rounded(rounded + i, values);
    }
}

// rows times matrix, for a multiple of 32 rows: finish(row, column, block) takes each (32, 32) block of sums. A panel is
// fetched to the second cache during the products with the one before.
template <class Tiles, class Finish>
void multiply(const Bfloat16* rows, size_t n_rows, const PanelMatrix& matrix, const Finish& finish) {
    alignas(64) float block[panel_columns * panel_columns];
    const size_t n_lines = matrix.inner * panel_columns * sizeof(Bfloat16) / 64, n_blocks = n_rows / panel_columns;
    const size_t share = (n_lines + n_blocks - 1) / n_blocks;
    for (size_t column = 0; column < matrix.outer; column += panel_columns) {
        const Bfloat16* panel = matrix.panel(column / panel_columns);
        const size_t ahead = column + panel_columns < matrix.outer ? matrix.inner * panel_columns : 0;
        const char* fetched = reinterpret_cast<const char*>(panel + ahead);
        for (size_t row = 0; row < n_rows; row += panel_columns, fetched += 64 * share) {
            for (size_t i = 0; i < share; ++i) __builtin_prefetch(fetched + 64 * i, 0, 2);
            Tiles::product32(rows + row * matrix.inner, matrix.inner, panel, matrix.inner / panel_columns, block);
            finish(row, column, block);
        }
    }
}

inline size_t padded(size_t n) { return (n + panel_columns - 1) / panel_columns * panel_columns; }

// Where panels of `inner` rows hold an inner row of a column.
inline size_t panel_index(size_t inner, size_t row, size_t column) {
    constexpr size_t block = panel_columns * panel_columns;
    return column / panel_columns * panel_columns * inner + row / panel_columns * block + column % panel_columns / tile * (block / 2) +
           row % panel_columns / 2 * (2 * tile) + column % tile * 2 + row % 2;
}

// Puts the keys of a head, (n, size) with a stride, in panels: their columns are the keys, then zeros.
inline void pack_keys(const Bfloat16* keys, size_t stride, size_t n, size_t size, Bfloat16* panels) {
    for (size_t key = 0; key < padded(n); ++key) {
        for (size_t row = 0; row < size; row += 2) {
            Bfloat16* pair = panels + panel_index(size, row, key);
            pair[0] = key < n ? keys[key * stride + row] : 0;
            pair[1] = key < n ? keys[key * stride + row + 1] : 0;
        }
    }
}

// Puts the values of a head, (n, size) with a stride, in panels: their inner rows are the keys, then zeros.
inline void pack_values(const Bfloat16* values, size_t stride, size_t n, size_t size, Bfloat16* panels) {
    const size_t n_padded = padded(n);
    for (size_t key = 0; key < n_padded; key += 2) {
        for (size_t column = 0; column < size; column += tile) {
            Bfloat16* row = panels + panel_index(n_padded, key, column);
            const Bfloat16* even = values + key * stride + column;
            for (size_t l = 0; l < tile; ++l) {
                row[2 * l] = key < n ? even[l] : 0;
                row[2 * l + 1] = key + 1 < n ? even[stride + l] : 0;
            }
        }
    }
}

// softmax(scores) of n keys in a row of `width`, as weights without their division; returns 1 / their sum.
inline float softmax_row(float* scores, size_t n, size_t width, float scale, Bfloat16* weights) {
    std::fill(scores + n, scores + width, -INFINITY);  // their weights are e^-87
    Floats most = load(scores), sums{};
    for (size_t i = lanes; i < width; i += lanes) most = larger(most, load(scores + i));
    float largest = most[0];
    for (size_t l = 1; l < lanes; ++l) largest = std::max(largest, most[l]);
    for (size_t i = 0; i < width; i += lanes) {
        const Floats weight = exponential((load(scores + i) - largest) * scale);
        sums += weight;
        store_rounded(weights + i, weight);
    }
    return 1.0f / sum_of(sums);
}

// Memory for a batch of texts. A thread keeps it, since the pages of a new one would cost a percent or two.
struct Workspace {
    Lines<Bfloat16> rounded, qkv, attended, wide, keys, values, weights;
    Lines<float> scores, states;
};

// A batch of texts on its way through the layers.
template <class Tiles>
class Batch {
public:
    Batch(const EncoderWeights& encoder, const int64_t* offsets, size_t n_texts, Workspace& space)
        : encoder_(encoder), offsets_(offsets), n_texts_(n_texts), space_(space) {
        n_tokens_ = begin_of(n_texts);
        n_rows_ = padded(n_tokens_);
        width_ = encoder.n_heads * encoder.head_size;
        size_t longest = 0, widest = 0;
        for (size_t i = 0; i < n_texts; ++i) longest = std::max(longest, padded(begin_of(i + 1) - begin_of(i)));
        for (const EncoderLayer& layer : encoder.layers) widest = std::max(widest, layer.wide.outer);
        space.states.resize(n_rows_ * encoder.hidden);
        space.rounded.resize(n_rows_ * encoder.hidden);
        space.qkv.resize((n_rows_ + tile) * 3 * width_);  // a tile of queries reaches beyond the last text
        space.attended.resize(n_rows_ * width_);
        space.wide.resize(n_rows_ * widest);
        space.keys.resize(longest * encoder.head_size);
        space.values.resize(longest * encoder.head_size);
        space.weights.resize(tile * longest);
        space.scores.resize(tile * longest);
    }

    // Fills the states with the embeddings of the ids.
    void embed(const uint32_t* ids) {
        const size_t hidden = encoder_.hidden;
        for (size_t text = 0; text < n_texts_; ++text) {
            const float* position = encoder_.positions;
            for (size_t row = begin_of(text); row < begin_of(text + 1); ++row, position += hidden) {
                const float* word = encoder_.words + size_t{ids[offsets_[0] + static_cast<int64_t>(row)]} * hidden;
                float* state = space_.states.data() + row * hidden;
                for (size_t i = 0; i < hidden; i += lanes) store(state + i, load(word + i) + load(position + i));
            }
        }
        normalize_states(encoder_.embedding_norm);
    }

    void run(const EncoderLayer& layer) {
        multiply<Tiles>(space_.rounded.data(), n_rows_, layer.qkv, [&](size_t row, size_t column, const float* block) {
            Bfloat16* out = space_.qkv.data() + row * 3 * width_ + column;
            each_vector(block, layer.qkv_bias + column, [&](size_t i, size_t l, Floats x) { store_rounded(out + i * 3 * width_ + l, x); });
        });
        for (size_t text = 0; text < n_texts_; ++text) {
            for (size_t head = 0; head < encoder_.n_heads; ++head) attend(text, head);
        }
        add_product(space_.attended, layer.attended, layer.attended_bias);
        normalize_states(layer.attention_norm);
        multiply<Tiles>(space_.rounded.data(), n_rows_, layer.wide, [&](size_t row, size_t column, const float* block) {
            Bfloat16* out = space_.wide.data() + row * layer.wide.outer + column;
            each_vector(block, layer.wide_bias + column, [&](size_t i, size_t l, Floats x) {
                store_rounded(out + i * layer.wide.outer + l, activated(x, encoder_.activation));
            });
        });
        add_product(space_.wide, layer.narrow, layer.narrow_bias);
        normalize_states(layer.output_norm);
    }

    void copy_states(float* out) const {
        std::copy(space_.states.data(), space_.states.data() + n_tokens_ * encoder_.hidden, out);
    }

private:
    // Returns the first row of a text.
    size_t begin_of(size_t text) const { return static_cast<size_t>(offsets_[text] - offsets_[0]); }

    // Calls use(row, column, sums plus bias) for every vector of a (32, 32) block of sums.
    template <class Use>
    static void each_vector(const float* block, const float* bias, const Use& use) {
        for (size_t i = 0; i < panel_columns; ++i) {
            for (size_t l = 0; l < panel_columns; l += lanes) use(i, l, load(block + i * panel_columns + l) + load(bias + l));
        }
    }

    // Adds rows times matrix and the bias to the states.
    void add_product(const Lines<Bfloat16>& rows, const PanelMatrix& matrix, const float* bias) {
        multiply<Tiles>(rows.data(), n_rows_, matrix, [&](size_t row, size_t column, const float* block) {
            float* states = space_.states.data() + row * encoder_.hidden + column;
            each_vector(block, bias + column, [&](size_t i, size_t l, Floats x) {
                float* state = states + i * encoder_.hidden + l;
                store(state, load(state) + x);
            });
        });
    }

    void normalize_states(NormWeights norm) {
        const size_t hidden = encoder_.hidden;
        for (size_t row = 0; row < n_tokens_; ++row) {
            normalize(space_.states.data() + row * hidden, hidden, norm, encoder_.epsilon, space_.rounded.data() + row * hidden);
        }
    }

    // The attention of one head within one text.
    void attend(size_t text, size_t head) {
        const size_t begin = begin_of(text), n = begin_of(text + 1) - begin, n_padded = padded(n);
        const size_t size = encoder_.head_size, stride = 3 * width_;
        const Bfloat16* queries = space_.qkv.data() + begin * stride + head * size;
        pack_keys(queries + width_, stride, n, size, space_.keys.data());
        pack_values(queries + 2 * width_, stride, n, size, space_.values.data());
        for (size_t query = 0; query < n; query += tile) {
            for (size_t key = 0; key < n_padded; key += panel_columns) {
                Tiles::product16(queries + query * stride, stride, space_.keys.data() + key * size, size / panel_columns,
                                 space_.scores.data() + key, n_padded);
            }
            mix_values(n, std::min(tile, n - query), space_.attended.data() + (begin + query) * width_ + head * size);
        }
    }

    // Mixes the values of n keys by the scores of a tile of queries, of which some rows count.
    void mix_values(size_t n, size_t n_queries, Bfloat16* attended) {
        const size_t n_padded = padded(n);
        alignas(64) float block[tile * panel_columns];
        float shares[tile];
        for (size_t i = 0; i < tile; ++i) {
            shares[i] = softmax_row(space_.scores.data() + i * n_padded, n, n_padded, encoder_.score_scale,
                                    space_.weights.data() + i * n_padded);
        }
        for (size_t column = 0; column < encoder_.head_size; column += panel_columns) {
            Tiles::product16(space_.weights.data(), n_padded, space_.values.data() + column * n_padded,
                             n_padded / panel_columns, block, panel_columns);
            for (size_t i = 0; i < n_queries; ++i) {
                for (size_t l = 0; l < panel_columns; l += lanes) {
                    store_rounded(attended + i * width_ + column + l, load(block + i * panel_columns + l) * shares[i]);
                }
            }
        }
    }

    const EncoderWeights& encoder_;
    const int64_t* offsets_;
    size_t n_texts_, n_tokens_, n_rows_, width_;
    Workspace& space_;
};

template <class Tiles>
void encode_texts(const EncoderWeights& encoder, const uint32_t* ids, const int64_t* offsets, size_t n_texts, float* states) {
    if (offsets[n_texts] == offsets[0]) return;
    static thread_local Workspace space;
    Tiles::configure();
    Batch<Tiles> batch(encoder, offsets, n_texts, space);
    batch.embed(ids);
    for (const EncoderLayer& layer : encoder.layers) batch.run(layer);
    batch.copy_states(states);
}

}  // namespace
}  // namespace lightir
