#include "codes.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "half.hpp"
#include "rotation.hpp"

namespace lightir {
namespace {

// A query's part across a row points in any direction, since the rotation looks random. So its product with the row's
// residual is sub-Gaussian, with a standard deviation of 1 / sqrt(width - 1) of the product of their lengths, and it exceeds
// code_deviations of these with a probability below exp(-code_deviations^2 / 2) < 1e-9 (Chernoff bound).
void read_row(const Matrix& rows, size_t row, std::vector<double>& values) {
    const uint8_t* data = rows.row(row);
    for (size_t j = 0; j < rows.width; ++j) {
        switch (rows.element) {
            case Element::float16: values[j] = half_to_float(reinterpret_cast<const uint16_t*>(data)[j]); break;
            case Element::bfloat16: values[j] = bfloat16_to_float(reinterpret_cast<const uint16_t*>(data)[j]); break;
            case Element::float32: values[j] = reinterpret_cast<const float*>(data)[j]; break;
            case Element::int8:
                values[j] = static_cast<double>(rows.scales[row]) * reinterpret_cast<const int8_t*>(data)[j];
        }
    }
}

// One row's codes, and what they say about the row.
class RowCoder {
public:
    RowCoder(const Matrix& rows, const float* center)
        : rows_(rows), center_(center), rotation_(rows.width), values_(rows.width), codes_(rows.width) {
        for (size_t j = 0; j < rows.width; ++j) center_length_ += static_cast<double>(center[j]) * center[j];
        center_length_ = std::sqrt(center_length_);
        const double others = static_cast<double>(rows.width) - 1.0;
        share_ = others > 0.0 ? std::min(1.0, code_deviations / std::sqrt(others)) : 1.0;
    }

    // Reads a row and returns its scale and its error bound as bfloat16. With y the rotated row less the center and u the
    // numbers of its codes, the scale s = |y|^2 / (u . y) makes s u - y orthogonal to y. So for a query q, s (q . u) - q . y is
    // the product of s u - y and of q's part across y.
    //
    // The error also bounds roundings, and is at least least_error of the scale: a search adds the error of its tables squared,
    // which is at most sqrt(3) of that, and then a bound of twice the roundings is enough. The kernel's score of a row has at
    // most width / 32 + 6 roundings in a row, its bound at most 64, and each changes a number by at most 2 ** -24 of the
    // lengths of row, center and coded row.
    std::pair<uint16_t, uint16_t> read(size_t row) {
        read_row(rows_, row, values_);
        double whole_squares = 0.0, squares = 0.0;
        for (size_t j = 0; j < rows_.width; ++j) {
            whole_squares += values_[j] * values_[j];
            values_[j] -= center_[j];
            squares += values_[j] * values_[j];
        }
        rotation_.apply(values_.data());
        const double step = std::sqrt(squares / static_cast<double>(rows_.width));
        const double steps_a_unit = step > 0.0 ? 1.0 / step : 0.0;
        double products = 0.0, number_squares = 0.0;
        for (size_t j = 0; j < rows_.width; ++j) {
            const double place = values_[j] * steps_a_unit + 2.0;  // code 2 begins at 0
            codes_[j] = static_cast<uint8_t>(place >= 3.0 ? 3.0 : place > 0.0 ? place : 0.0);  // NaN gives 0
            const double number = 2.0 * codes_[j] - 3.0;
            products += values_[j] * number;
            number_squares += number * number;
        }
        const double scale = products > 0.0 ? squares / products : 0.0;
        const uint16_t stored = float_to_bfloat16(static_cast<float>(scale));
        const double change = static_cast<double>(bfloat16_to_float(stored)) - scale;
        const double rounded = std::fabs(change) * std::sqrt(number_squares);
        const double across = std::sqrt(std::max(0.0, scale * scale * number_squares - squares));
        const double rounding = (static_cast<double>(rows_.width) / 32.0 + 128.0) * 0x1p-22;
        const double lengths = std::sqrt(whole_squares) + center_length_ + scale * std::sqrt(number_squares);
        const double error = (std::max(share_ * across, least_error * scale) + rounded + rounding * lengths) * (1.0 + 1e-6);
        return {stored, float_to_bfloat16(static_cast<float>(error), 0xffff)};
    }

    uint8_t code(size_t column) const { return codes_[column]; }

private:
    const Matrix& rows_;
    const float* center_;
    const Rotation rotation_;
    std::vector<double> values_;
    std::vector<uint8_t> codes_;
    double center_length_ = 0.0, share_ = 1.0;
};

}  // namespace

void code_rows(const Matrix& rows, const float* center, uint8_t* blocks, uint16_t* scales, uint16_t* errors) {
    const size_t n_columns = (rows.width + codes_a_byte - 1) / codes_a_byte;
    RowCoder coder(rows, center);
    for (size_t row = 0; row < rows.n_rows; ++row) {
        std::tie(scales[row], errors[row]) = coder.read(row);
        if (!std::isfinite(bfloat16_to_float(scales[row])) || !std::isfinite(bfloat16_to_float(errors[row]))) {
            throw InvalidInput("row " + std::to_string(row) + " cannot be coded: its values are not finite, or too large");
        }
        uint8_t* bytes = blocks + row / coded_block * n_columns * coded_block + row % coded_block;
        for (size_t j = 0; j < rows.width; ++j) {
            uint8_t& byte = bytes[j % n_columns * coded_block];
            byte = static_cast<uint8_t>(byte | coder.code(j) << 2 * (j / n_columns));
        }
    }
}

}  // namespace lightir
