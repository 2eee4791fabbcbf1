#pragma once

#include <cstdint>

#include "arrays.hpp"

namespace lightir {

// Writes 2-bit codes of rows (Codes in dense.hpp): blocks (ceil(n_rows / 64), ceil(width / 4), 64), zeros at first, and scales
// and errors (n_rows,) as bfloat16. InvalidInput if a row is not finite, or too large for an error bound.
void code_rows(const Matrix& rows, const float* center, uint8_t* blocks, uint16_t* scales, uint16_t* errors);

}  // namespace lightir
