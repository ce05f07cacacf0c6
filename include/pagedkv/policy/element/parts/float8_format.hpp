#pragma once

#include <cstdint>

// Floating-point formats of 8 bits: the sign in the highest bit, then the exponent, then the mantissa. `largest` and
// `smallest` are numbers above zero.

namespace pagedkv {

/// OCP's E4M3: no infinity, and NaN where all bits but the sign are ones.
struct e4m3_format {
  static constexpr std::int32_t mantissa_bits = 3;
  static constexpr std::int32_t bias = 7;
  static constexpr std::int32_t largest = 448;
  static constexpr float smallest = 0x1p-9f;
  static constexpr std::int32_t largest_bits = 0x7e;
  static constexpr std::int32_t nan_bits = 0x7f;
  static constexpr bool has_infinity = false;
  static constexpr bool signed_zero = true;
};

/// OCP's E5M2, the upper half of binary16.
struct e5m2_format {
  static constexpr std::int32_t mantissa_bits = 2;
  static constexpr std::int32_t bias = 15;
  static constexpr std::int32_t largest = 57344;
  static constexpr float smallest = 0x1p-16f;
  static constexpr std::int32_t largest_bits = 0x7b;
  static constexpr std::int32_t nan_bits = 0x7f;
  static constexpr bool has_infinity = true;
  static constexpr bool signed_zero = true;
};

/// E4M3 of CDNA 3: a larger bias; the sign alone is the only NaN, so there is no negative zero.
struct e4m3fnuz_format {
  static constexpr std::int32_t mantissa_bits = 3;
  static constexpr std::int32_t bias = 8;
  static constexpr std::int32_t largest = 240;
  static constexpr float smallest = 0x1p-10f;
  static constexpr std::int32_t largest_bits = 0x7f;
  static constexpr std::int32_t nan_bits = 0x80;
  static constexpr bool has_infinity = false;
  static constexpr bool signed_zero = false;
};

/// E5M2 of CDNA 3, likewise.
struct e5m2fnuz_format {
  static constexpr std::int32_t mantissa_bits = 2;
  static constexpr std::int32_t bias = 16;
  static constexpr std::int32_t largest = 57344;
  static constexpr float smallest = 0x1p-17f;
  static constexpr std::int32_t largest_bits = 0x7f;
  static constexpr std::int32_t nan_bits = 0x80;
  static constexpr bool has_infinity = false;
  static constexpr bool signed_zero = false;
};

}  // namespace pagedkv
