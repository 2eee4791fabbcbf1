// The border to Python of encoders.
#include "bind_encoder.hpp"

#include <nanobind/stl/pair.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dispatch.hpp"
#include "encoder.hpp"
#include "parallel.hpp"
#include "python_arrays.hpp"
#include "python_branches.hpp"

namespace lightir {
namespace {

constexpr size_t group_tokens = 384;  // tokens of the texts that a thread encodes together: their states fit its cache

// An encoder's weights, of which it keeps the arrays that it borrows.
class Encoder {
public:
    Encoder(const Encoder&) = delete;
    Encoder& operator=(const Encoder&) = delete;
    // words: (n_words, hidden). positions: (n_positions, hidden). norm: weight and bias. layers: of each, the weights and
    // biases of qkv, attended, wide and narrow, and the weights and biases of both norms. activation: the limit, then the
    // coefficients. sizes: number of heads, and their size. int8: whether the layers multiply integers. All arrays are float32.
    Encoder(nb::object words, nb::object positions, nb::tuple norm, nb::list layers, nb::object activation,
            std::pair<size_t, size_t> sizes, std::pair<float, float> numbers, bool int8) {
        const Array& table = kept_.keep(words, "words", 2);
        n_words_ = table.size(0);
        weights_.hidden = table.size(1);
        weights_.words = table.span<float>().data;
        const Array& rows = kept_.keep(positions, "positions", 2);
        n_positions_ = rows.size(0);
        same_length("columns of words and positions", weights_.hidden, rows.size(1));
        weights_.positions = rows.span<float>().data;
        std::tie(weights_.n_heads, weights_.head_size) = sizes;
        std::tie(weights_.score_scale, weights_.epsilon) = numbers;
        for (const size_t size : {weights_.hidden, weights_.head_size}) {
            if (size == 0 || size % panel_columns != 0 || size > most_width) {
                throw InvalidInput("states and heads have multiples of 32 columns, at most 65,536, not " + std::to_string(size));
            }
        }
        if (weights_.n_heads == 0 || weights_.n_heads * weights_.head_size > most_width) throw InvalidInput("too many heads, or none");
        weights_.embedding_norm = {vector(norm[0], weights_.hidden), vector(norm[1], weights_.hidden)};
        const float* terms = vector(activation, 1 + activation_terms);
        weights_.activation.limit = terms[0];
        std::copy(terms + 1, terms + 1 + activation_terms, weights_.activation.coefficients);
        for (nb::handle layer : layers) {
            const auto parts = nb::cast<nb::tuple>(layer);
            if (int8) add_layer(parts, weights_.integer_layers);
            else add_layer(parts, weights_.layers);
        }
    }

    // Returns the (n_tokens, hidden) states of texts: ids (n_tokens,) int32, offsets (n_texts + 1,) int64.
    nb::object encode(nb::handle ids, nb::handle offsets, size_t n_threads, bool tiles) const {
        const Array given_ids(ids, "ids", 1), given_offsets(offsets, "offsets", 1);
        const Span<uint32_t> terms = given_ids.span<uint32_t>();
        const Span<int64_t> bounds = given_offsets.span<int64_t>();
        check_indptr(bounds, terms.size, "offsets");
        if (tiles && !has_bfloat16_tiles()) throw InvalidInput("this processor has no tiles of bfloat16");
        for (size_t i = 0; i + 1 < bounds.size; ++i) {
            const auto n = static_cast<size_t>(bounds[i + 1] - bounds[i]);
            if (n > n_positions_) {
                throw InvalidInput("a text has " + std::to_string(n) + " tokens, but there are " + std::to_string(n_positions_) +
                                   " positions");
            }
        }
        for (const uint32_t id : terms) {
            if (id >= n_words_) {
                throw InvalidInput("id " + std::to_string(id) + " is beyond the " + std::to_string(n_words_) + " words");
            }
        }
        nb::object states = new_array<float, 2>({terms.size, weights_.hidden});
        float* out = static_cast<float*>(array_data(states));
        const EncodeTexts run = tiles ? tiles_of_processor() : encode_texts_plain;
        const nb::gil_scoped_release released;
        const std::vector<size_t> groups = grouped(bounds);
        parallel_for(groups.size() - 1, n_threads, [&](size_t i) {
            const int64_t* first = bounds.data + groups[i];
            run(weights_, terms.data, first, groups[i + 1] - groups[i], out + static_cast<size_t>(*first) * weights_.hidden);
        });
        return states;
    }

private:
    static constexpr size_t most_width = 1u << 16;

    // Returns the first texts of groups of at most group_tokens, or of one text; and the number of texts.
    static std::vector<size_t> grouped(Span<int64_t> bounds) {
        std::vector<size_t> firsts{0};
        for (size_t i = 0; i + 1 < bounds.size; ++i) {
            if (i > firsts.back() && bounds[i + 1] - bounds[firsts.back()] > static_cast<int64_t>(group_tokens)) firsts.push_back(i);
        }
        if (bounds.size > 1) firsts.push_back(bounds.size - 1);
        return firsts;
    }

    const float* vector(nb::handle object, size_t n) {
        const Span<float> values = kept_.keep(nb::borrow(object), "a weight", 1).span<float>();
        same_length("a weight and its layer", n, values.size);
        return values.data;
    }

    template <typename Number>
    PanelMatrix<Number> matrix(nb::handle object, size_t outer, size_t inner) {
        const Array weight(object, "a weight", 2);
        same_length("rows of a weight and its layer", outer, weight.size(0));
        same_length("columns of a weight and its layer", inner, weight.size(1));
        return {weight.span<float>().data, outer, inner};
    }

    template <typename Number>
    void add_layer(const nb::tuple& parts, std::vector<EncoderLayer<Number>>& layers) {
        const size_t hidden = weights_.hidden, width = weights_.n_heads * weights_.head_size;
        const size_t n_wide = Array(parts[4], "a weight", 2).size(0);
        if (n_wide == 0 || n_wide % panel_columns != 0 || n_wide > most_width) {
            throw InvalidInput("the wide layer has a multiple of 32 columns, at most 65,536, not " + std::to_string(n_wide));
        }
        layers.push_back({matrix<Number>(parts[0], 3 * width, hidden), matrix<Number>(parts[2], hidden, width),
                          matrix<Number>(parts[4], n_wide, hidden), matrix<Number>(parts[6], hidden, n_wide),
                          vector(parts[1], 3 * width), vector(parts[3], hidden), vector(parts[5], n_wide), vector(parts[7], hidden),
                          {vector(parts[8], hidden), vector(parts[9], hidden)}, {vector(parts[10], hidden), vector(parts[11], hidden)}});
    }

    Kept kept_;
    EncoderWeights weights_;
    size_t n_words_ = 0, n_positions_ = 0;
};

}  // namespace

void bind_encoder(nb::module_& m) {
    m.def("has_bfloat16_tiles", &has_bfloat16_tiles);
    nb::class_<Encoder>(m, "Encoder")
        .def(nb::init<nb::object, nb::object, nb::tuple, nb::list, nb::object, std::pair<size_t, size_t>, std::pair<float, float>, bool>())
        .def("encode", &Encoder::encode);
}

}  // namespace lightir
