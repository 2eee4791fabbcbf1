// The steps of an encoder over a kind of tiles; included by one source file for each instruction set.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "encoder.hpp"
#include "half.hpp"

namespace lightir {
namespace {  // one private copy for each instruction set

constexpr size_t lanes = 16;

// Vectors of the compiler's: instructions of the source file's set, or loops where it has none so wide.
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Words __attribute__((vector_size(64)));
typedef Bfloat16 Halves __attribute__((vector_size(32)));

constexpr float round_by = 12582912.0f;  // 1.5 * 2^23: adding it to a number rounds it to an integer

// The same bits as a vector of another type.
template <typename To, typename From>
To as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}

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
    const Words bits = as<Words>(values);
    const Halves halves = __builtin_convertvector((bits + 0x7fff + (bits >> 16 & 1)) >> 16, Halves);
#endif
    __builtin_memcpy(p, &halves, sizeof(halves));
}

// Rounds to the nearest integer, for -127 to 127.
inline void store_rounded(int8_t* p, Floats values) {
    const Words integers = as<Words>(values + round_by);  // in the lowest bits
#ifdef __AVX512BF16__
    const __m128i bytes = _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(integers));
#else
    typedef int8_t Bytes __attribute__((vector_size(16)));
    const Bytes bytes = __builtin_convertvector(integers, Bytes);
#endif
    __builtin_memcpy(p, &bytes, sizeof(bytes));
}

// 2^x for -126 <= x <= 0, within 1.1e-4 of itself, which bfloat16 cannot tell apart: 2^n times a polynomial of the remainder.
inline Floats power_of_2(Floats x) {
#ifdef __AVX512BF16__
    const Floats r = reinterpret_cast<Floats>(_mm512_reduce_ps(reinterpret_cast<__m512>(x), 0));
#else
    const Floats r = x - (x + round_by - round_by);
#endif
    const Floats p = ((all(0.05500861f) * r + 0.24221022f) * r + 0.69328288f) * r + 1.0f;
#ifdef __AVX512BF16__
    return reinterpret_cast<Floats>(_mm512_scalef_ps(reinterpret_cast<__m512>(p), reinterpret_cast<__m512>(x - r)));
#else
    return as<Floats>(as<Words>(p) + (as<Words>(x + round_by) << 23));
#endif
}

inline Floats activated(Floats x, const Activation& activation) {
    const Floats u = smaller(larger(x, all(-activation.limit)), all(activation.limit)), square = u * u;
    Floats p = all(activation.coefficients[activation_terms - 1]);
    for (size_t i = activation_terms - 1; i-- > 0;) p = p * square + activation.coefficients[i];
    return x * (0.5f + u * p);
}

// Folds the lanes of a vector: the lower half with the upper one, down to a number.
template <class Fold>
float folded(Floats values, Fold fold) {
    typedef float Eight __attribute__((vector_size(32)));
    typedef float Four __attribute__((vector_size(16)));
    struct Eights { Eight lower, upper; } const eights = as<Eights>(values);
    struct Fours { Four lower, upper; } const fours = as<Fours>(fold(eights.lower, eights.upper));
    const Four four = fold(fours.lower, fours.upper);
    return fold(fold(four[0], four[2]), fold(four[1], four[3]));
}
inline float sum_of(Floats values) {
    return folded(values, [](auto a, auto b) { return a + b; });
}
inline float largest_of(Floats values) {
    return folded(values, [](auto a, auto b) { return a > b ? a : b; });
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

// The left side of a product: rows of numbers, and the scales of integers.
template <typename Number>
struct Rows {
    const Number* numbers;
    const float* scales;
};

template <typename Number>
using Sum = std::conditional_t<std::is_same_v<Number, int8_t>, int32_t, float>;

inline Floats widened(const Bfloat16* p) {
    Halves halves;
    __builtin_memcpy(&halves, p, sizeof(halves));
    return as<Floats>(__builtin_convertvector(halves, Words) << 16);
}

// Rounds n bfloat16, a multiple of 32, to integers from -127 to 127 times a scale, which is returned.
inline float round_row(const Bfloat16* row, size_t n, int8_t* integers) {
    typedef Bfloat16 Sizes __attribute__((vector_size(64)));
    Sizes most{};
    for (size_t i = 0; i < n; i += 2 * lanes) {
        Sizes sizes;
        __builtin_memcpy(&sizes, row + i, sizeof(sizes));
        sizes &= 0x7fff;  // without their signs, numbers have the order of their bits
        most = sizes > most ? sizes : most;
    }
    const Words pairs = as<Words>(most);
    const float size = largest_of(larger(as<Floats>(pairs << 16), as<Floats>(pairs >> 16 << 16)));
    const float times = size == 0.0f ? 0.0f : 127.0f / size;
    for (size_t i = 0; i < n; i += lanes) store_rounded(integers + i, widened(row + i) * times);
    return size / 127.0f;
}

constexpr auto nothing = [](size_t) {};

// rows times matrix plus bias, for a multiple of 32 rows: finish(row, column, vector) takes the sums, 16 columns at a time.
// A (32, 32) block of them is finished during the products of the next one, some of its rows at each step.
template <class Tiles, typename Number, class Finish>
void multiply(Rows<Number> rows, size_t n_rows, const PanelMatrix<Number>& matrix, const float* bias, const Finish& finish) {
    alignas(64) Sum<Number> blocks[2][panel_columns * panel_columns];
    Sum<Number>*block = blocks[0], *finished = blocks[1];
    size_t finished_row = 0, finished_column = 0, n_finished = 0;
    const size_t n_steps = matrix.inner / block_rows<Number>, step_rows = (panel_columns + n_steps - 1) / n_steps;
    const float* scales = matrix.scales.data();
    // It has copies of what it reads, which no store can change.
    const auto finish_some = [=, &finished, &finished_row, &finished_column, &n_finished](size_t step) {
        for (size_t i = step * step_rows, end = std::min(i + step_rows, n_finished); i < end; ++i) {
            for (size_t l = 0; l < panel_columns; l += lanes) {
                const size_t row = finished_row + i, column = finished_column + l;
                Floats sums;
                if constexpr (std::is_same_v<Number, int8_t>) {
                    Words exact;
                    __builtin_memcpy(&exact, finished + i * panel_columns + l, sizeof(exact));
                    sums = __builtin_convertvector(exact, Floats) * (load(scales + column) * rows.scales[row]);
                } else {
                    sums = load(finished + i * panel_columns + l);
                }
                finish(row, column, sums + load(bias + column));
            }
        }
    };
    for (size_t column = 0; column < matrix.outer; column += panel_columns) {
        for (size_t row = 0; row < n_rows; row += panel_columns) {
            Tiles::product(rows.numbers + row * matrix.inner, matrix.inner, matrix.panel(column / panel_columns), n_steps, block,
                           panel_columns, finish_some);
            std::swap(block, finished);
            finished_row = row, finished_column = column, n_finished = panel_columns;
        }
    }
    for (size_t step = 0; step < n_steps; ++step) finish_some(step);
}

inline size_t padded(size_t n, size_t multiple = panel_columns) { return (n + multiple - 1) / multiple * multiple; }

// Where panels of `inner` rows hold an inner row of a column.
template <typename Number>
size_t panel_index(size_t inner, size_t row, size_t column) {
    constexpr size_t rows = block_rows<Number>, together = side_by_side<Number>;
    return column / panel_columns * panel_columns * inner + row / rows * rows * panel_columns + column % panel_columns / tile * rows * tile +
           row % rows / together * together * tile + column % tile * together + row % together;
}

// Writes the columns of a (16, 16) matrix of pairs of numbers, whose rows have a stride, as rows.
inline void transpose_pairs(const Bfloat16* rows, size_t stride, Bfloat16* columns) {
#ifdef __AVX512BF16__
    __m512i a[16], b[16];
    for (size_t i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(rows + i * stride);
    for (size_t i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (size_t i = 0; i < 16; i += 4) {  // then a[i + j] has the columns j, 4 + j, 8 + j and 12 + j of four rows
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    const auto put = [&](size_t i, __m512i column) { _mm512_storeu_si512(columns + i * 2 * tile, column); };
    for (size_t j = 0; j < 4; ++j) {
        const __m512i even = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88), odd = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xdd);
        const __m512i even2 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88), odd2 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xdd);
        put(j, _mm512_shuffle_i32x4(even, even2, 0x88));
        put(4 + j, _mm512_shuffle_i32x4(odd, odd2, 0x88));
        put(8 + j, _mm512_shuffle_i32x4(even, even2, 0xdd));
        put(12 + j, _mm512_shuffle_i32x4(odd, odd2, 0xdd));
    }
#else
    for (size_t i = 0; i < 16; ++i) {
        for (size_t j = 0; j < 16; ++j) std::copy_n(rows + i * stride + 2 * j, 2, columns + j * 2 * tile + 2 * i);
    }
#endif
}

// Puts the keys of a head, (n, size) with a stride, in panels: their columns are the keys, then rows that follow these.
inline void pack_keys(const Bfloat16* keys, size_t stride, size_t n, size_t size, Bfloat16* panels) {
    for (size_t key = 0; key < padded(n); key += tile) {
        for (size_t row = 0; row < size; row += panel_columns) {
            transpose_pairs(keys + key * stride + row, stride, panels + panel_index<Bfloat16>(size, row, key));
        }
    }
}

// Puts the values of a head, (n, size) with a stride, in panels: their inner rows are the keys, then zeros.
inline void pack_values(const Bfloat16* values, size_t stride, size_t n, size_t size, Bfloat16* panels) {
    const size_t n_padded = padded(n);
    for (size_t key = 0; key < n_padded; key += 2) {
        for (size_t column = 0; column < size; column += tile) {
            Halves even{}, odd{};
            if (key < n) __builtin_memcpy(&even, values + key * stride + column, sizeof(even));
            if (key + 1 < n) __builtin_memcpy(&odd, values + (key + 1) * stride + column, sizeof(odd));
            const Words pairs = __builtin_convertvector(odd, Words) << 16 | __builtin_convertvector(even, Words);
            __builtin_memcpy(panels + panel_index<Bfloat16>(n_padded, key, column), &pairs, sizeof(pairs));
        }
    }
}

// softmax(scale ln 2 scores) of n keys in a row of `width`, as weights without their division; returns 1 / their sum.
inline float softmax_row(float* scores, size_t n, size_t width, float scale, Bfloat16* weights) {
    std::fill(scores + n, scores + width, -INFINITY);  // their weights are 2^-126
    Floats most = load(scores), sums{};
    for (size_t i = lanes; i < width; i += lanes) most = larger(most, load(scores + i));
    const float shift = -scale * largest_of(most);
    for (size_t i = 0; i < width; i += lanes) {
        const Floats weight = power_of_2(larger(load(scores + i) * scale + shift, all(-126.0f)));
        sums += weight;
        store_rounded(weights + i, weight);
    }
    return 1.0f / sum_of(sums);
}

// Memory for a batch of texts. A thread keeps it, since the pages of a new one would cost a percent or two.
struct Workspace {
    Lines<Bfloat16> rounded, qkv, attended, wide, keys, values, weights;
    Lines<float> scores, states;
    Lines<int8_t> integers;
    Lines<float> scales;
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
        for (const auto& layer : encoder.layers) widest = std::max(widest, layer.wide.outer);
        for (const auto& layer : encoder.integer_layers) widest = std::max(widest, layer.wide.outer);
        space.states.resize(n_rows_ * encoder.hidden);
        space.rounded.resize(n_rows_ * encoder.hidden);
        space.qkv.resize((n_rows_ + panel_columns) * 3 * width_);  // blocks of queries and keys reach beyond the last text
        space.attended.resize(n_rows_ * width_);
        space.wide.resize(n_rows_ * widest);
        space.keys.resize(longest * encoder.head_size);
        space.values.resize(longest * encoder.head_size);
        space.weights.resize(panel_columns * longest);
        space.scores.resize(panel_columns * longest);
        if (!encoder.integer_layers.empty()) {
            space.integers.resize(n_rows_ * padded(std::max(std::max(widest, width_), encoder.hidden), block_rows<int8_t>));
            space.scales.resize(n_rows_);
        }
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

    template <typename Number>
    void run(const EncoderLayer<Number>& layer) {
        const size_t stride = 3 * width_, n_wide = layer.wide.outer;
        multiply<Tiles>(left_side<Number>(space_.rounded, encoder_.hidden), n_rows_, layer.qkv, layer.qkv_bias,
                        [stride, qkv = space_.qkv.data()](size_t row, size_t column, Floats x) {
                            store_rounded(qkv + row * stride + column, x);
                        });
        for (size_t text = 0; text < n_texts_; ++text) {
            for (size_t head = 0; head < encoder_.n_heads; ++head) attend(text, head);
        }
        add_product(left_side<Number>(space_.attended, width_), layer.attended, layer.attended_bias);
        normalize_states(layer.attention_norm);
        multiply<Tiles>(left_side<Number>(space_.rounded, encoder_.hidden), n_rows_, layer.wide, layer.wide_bias,
                        [n_wide, wide = space_.wide.data(), activation = encoder_.activation](size_t row, size_t column, Floats x) {
                            store_rounded(wide + row * n_wide + column, activated(x, activation));
                        });
        add_product(left_side<Number>(space_.wide, n_wide), layer.narrow, layer.narrow_bias);
        normalize_states(layer.output_norm);
    }

    void copy_states(float* out) const {
        std::copy(space_.states.data(), space_.states.data() + n_tokens_ * encoder_.hidden, out);
    }

private:
    // Returns the first row of a text.
    size_t begin_of(size_t text) const { return static_cast<size_t>(offsets_[text] - offsets_[0]); }

    // Returns rows of `width` bfloat16 as the left side of a product.
    template <typename Number>
    Rows<Number> left_side(const Lines<Bfloat16>& rows, size_t width) {
        if constexpr (std::is_same_v<Number, Bfloat16>) {
            return {rows.data(), nullptr};
        } else {
            const size_t stride = padded(width, block_rows<Number>);  // what lies beyond the width is multiplied by zeros
            for (size_t i = 0; i < n_tokens_; ++i) {
                space_.scales[i] = round_row(rows.data() + i * width, width, space_.integers.data() + i * stride);
            }
            return {space_.integers.data(), space_.scales.data()};
        }
    }

    // Adds rows times matrix and the bias to the states.
    template <typename Number>
    void add_product(Rows<Number> rows, const PanelMatrix<Number>& matrix, const float* bias) {
        multiply<Tiles>(rows, n_rows_, matrix, bias,
                        [hidden = encoder_.hidden, states = space_.states.data()](size_t row, size_t column, Floats x) {
                            float* state = states + row * hidden + column;
                            store(state, load(state) + x);
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
        for (size_t query = 0; query < n; query += panel_columns) {
            for (size_t key = 0; key < n_padded; key += panel_columns) {
                Tiles::product(queries + query * stride, stride, space_.keys.data() + key * size, size / panel_columns,
                               space_.scores.data() + key, n_padded, nothing);
            }
            mix_values(n, std::min(panel_columns, n - query), space_.attended.data() + (begin + query) * width_ + head * size);
        }
    }

    // Mixes the values of n keys by the scores of up to 32 queries.
    void mix_values(size_t n, size_t n_queries, Bfloat16* attended) {
        const size_t n_padded = padded(n);
        const float scale = encoder_.score_scale * 1.44269504f;
        alignas(64) float block[panel_columns * panel_columns];
        float shares[panel_columns];
        for (size_t i = 0; i < n_queries; ++i) {
            shares[i] = softmax_row(space_.scores.data() + i * n_padded, n, n_padded, scale, space_.weights.data() + i * n_padded);
        }
        for (size_t column = 0; column < encoder_.head_size; column += panel_columns) {
            Tiles::product(space_.weights.data(), n_padded, space_.values.data() + column * n_padded, n_padded / panel_columns, block,
                           panel_columns, nothing);
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
    for (const auto& layer : encoder.layers) batch.run(layer);
    for (const auto& layer : encoder.integer_layers) batch.run(layer);
    batch.copy_states(states);
}

}  // namespace
}  // namespace lightir
