#pragma once

#include <cstddef>
#include <cstdint>

#include "levels.hpp"

namespace lightir {

// A borrowed, read-only, contiguous array.
template <typename T>
struct Span {
    const T* data = nullptr;
    size_t size = 0;

    const T& operator[](size_t i) const { return data[i]; }
    const T* begin() const { return data; }
    const T* end() const { return data + size; }
};

// A borrowed (n_rows, width) matrix of half, bfloat16, float or int8 values; int8 rows carry one scale each.
struct Matrix {
    const void* data = nullptr;
    size_t n_rows = 0;
    size_t width = 0;
    Element element = Element::float32;
    const float* scales = nullptr;  // (n_rows,), only for int8

    size_t row_bytes() const { return width * element_bytes(element); }
    const uint8_t* row(size_t i) const { return static_cast<const uint8_t*>(data) + i * row_bytes(); }
};

// The documents that may be returned: bit i % 8 (least significant first) of byte i / 8; null allows all documents.
struct Bitmap {
    const uint8_t* bits = nullptr;

    bool operator()(size_t i) const { return bits == nullptr || (bits[i >> 3] >> (i & 7) & 1) != 0; }
};

}  // namespace lightir
