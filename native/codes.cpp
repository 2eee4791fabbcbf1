#include "codes.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "half.hpp"

namespace lightir {
namespace {

constexpr double step_share = 0.3;  // step of the codes / root mean square of a row's columns, each relative to its scale

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

// One row's codes, with the numbers that they stand for.
class RowCoder {
public:
    RowCoder(const Matrix& rows, const float* center, const float* columns)
        : rows_(rows), center_(center), columns_(columns), codes_(rows.width), centered_(rows.width),
          inverses_(rows.width) {
        double squares = 0.0;
        for (size_t j = 0; j < rows.width; ++j) {
            squares += static_cast<double>(center[j]) * center[j];
            inverses_[j] = 1.0 / columns[j];
        }
        center_length_ = std::sqrt(squares);
    }

    void read(size_t row) {
        read_row(rows_, row, centered_);
        double squares = 0.0, scaled_squares = 0.0;
        for (size_t j = 0; j < rows_.width; ++j) {
            squares += centered_[j] * centered_[j];
            centered_[j] -= center_[j];
            const double scaled = centered_[j] * inverses_[j];
            scaled_squares += scaled * scaled;
        }
        row_length_ = std::sqrt(squares);
        const double step = step_share * std::sqrt(scaled_squares / static_cast<double>(rows_.width));
        const double steps_a_unit = step > 0.0 ? 1.0 / step : 0.0;
        for (size_t j = 0; j < rows_.width; ++j) {
            const double place = centered_[j] * inverses_[j] * steps_a_unit + 8.0;  // code 8 begins at 0
            codes_[j] = static_cast<uint8_t>(place >= 15.0 ? 15.0 : place > 0.0 ? place : 0.0);  // NaN gives 0
        }
    }

    // Returns the scale that leaves the shortest residual for the numbers 2 * (code >> shift) - highest, and the bound of its
    // length and of roundings: the kernel's score of a row has at most width / 32 + 6 roundings in a row, its bound at most
    // 64, and each changes a number by at most 2 ** -24 of the lengths of row, center and coded row. The last is at most
    // the sum of the others.
    std::pair<float, float> fit(unsigned shift, double highest) const {
        double products = 0.0, squares = 0.0, residuals = 0.0;
        for (size_t j = 0; j < rows_.width; ++j) {
            const double number = number_of(j, shift, highest);
            products += centered_[j] * number;
            squares += number * number;
        }
        const float scale = squares > 0.0 ? static_cast<float>(std::max(0.0, products / squares)) : 0.0f;
        for (size_t j = 0; j < rows_.width; ++j) {
            const double residual = centered_[j] - scale * number_of(j, shift, highest);
            residuals += residual * residual;
        }
        const double rounding = (static_cast<double>(rows_.width) / 32.0 + 128.0) * 0x1p-22;
        const double error = (std::sqrt(residuals) + rounding * (row_length_ + center_length_)) * (1.0 + 1e-6);
        return {scale, std::nextafter(static_cast<float>(error), std::numeric_limits<float>::infinity())};
    }

    uint8_t code(size_t column) const { return codes_[column]; }

private:
    double number_of(size_t j, unsigned shift, double highest) const {
        return (2.0 * (codes_[j] >> shift) - highest) * columns_[j];
    }

    const Matrix& rows_;
    const float* center_;
    const float* columns_;
    std::vector<uint8_t> codes_;
    std::vector<double> centered_, inverses_;
    double center_length_ = 0.0, row_length_ = 0.0;
};

}  // namespace

void code_rows(const Matrix& rows, const float* center, const float* columns, uint8_t* blocks, float* scales, float* errors) {
    const size_t n_columns = (rows.width + codes_a_byte - 1) / codes_a_byte;
    RowCoder coder(rows, center, columns);
    for (size_t row = 0; row < rows.n_rows; ++row) {
        coder.read(row);
        for (size_t half = 0; half < 2; ++half) {
            const auto [scale, error] = coder.fit(half == 0 ? 2 : 0, half == 0 ? 3.0 : 15.0);
            if (!std::isfinite(scale) || !std::isfinite(error)) {
                throw InvalidInput("row " + std::to_string(row) + " cannot be coded: its values are not finite, or too large");
            }
            scales[half * rows.n_rows + row] = scale;
            errors[half * rows.n_rows + row] = error;
        }
        uint8_t* upper = blocks + row / coded_block * 2 * n_columns * coded_block + row % coded_block;
        uint8_t* lower = upper + n_columns * coded_block;
        for (size_t j = 0; j < rows.width; ++j) {
            const size_t at = j % n_columns * coded_block;
            const unsigned shift = static_cast<unsigned>(2 * (j / n_columns));
            upper[at] = static_cast<uint8_t>(upper[at] | (coder.code(j) >> 2) << shift);
            lower[at] = static_cast<uint8_t>(lower[at] | (coder.code(j) & 3) << shift);
        }
    }
}

}  // namespace lightir
