#pragma once

#include <cstdint>

namespace lightir {
namespace {  // one private copy per dispatch level, since their instruction sets must not mix

// IEEE half to float, exact for subnormals and infinities too; branch-free, so that compilers vectorize it.
inline float half_to_float(uint16_t half) {
    constexpr uint32_t exponent_mask = 0x7c00u << 13;
    const uint32_t magnitude = (half & 0x7fffu) << 13;
    const uint32_t exponent = magnitude & exponent_mask;
    uint32_t bits = magnitude + ((127u - 15u) << 23);
    bits += exponent == exponent_mask ? (128u - 16u) << 23 : 0u;
    const uint32_t magic_bits = 113u << 23, subnormal_bits = bits + (1u << 23);
    float magic, subnormal, value;
    __builtin_memcpy(&magic, &magic_bits, 4);
    __builtin_memcpy(&subnormal, &subnormal_bits, 4);
    subnormal -= magic;
    uint32_t shifted;
    __builtin_memcpy(&shifted, &subnormal, 4);
    bits = exponent == 0 ? shifted : bits;
    bits |= (half & 0x8000u) << 16;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

// bfloat16 is the upper half of a float.
inline float bfloat16_to_float(uint16_t upper) {
    const uint32_t bits = static_cast<uint32_t>(upper) << 16;
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

// The bfloat16 next to a float that is not negative; or, with `carry` 0xffff, the smallest one that is not below it.
inline uint16_t float_to_bfloat16(float value, uint32_t carry = 0x8000) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return static_cast<uint16_t>((bits + carry) >> 16);
}

}  // namespace
}  // namespace lightir
