#pragma once

#include <pagedkv/core/host_device.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/element/parts/rounded_product.hpp>

#include <cstdint>

namespace pagedkv {

/// Symmetric 8-bit integers, scaled per token and KV head: scale = absmax / 127. The scale is at least the smallest
/// normal float32, so that an all-zero row causes no division by zero and a subnormal row no imprecise one, and small
/// enough that 127 times it does not overflow. Rounds to nearest even; a finite row's error is at most scale / 2 per
/// number, up to float32's own rounding. Numbers beyond 127 times the scale, which cannot occur in a row of that scale,
/// encode to an unspecified value.
///
/// A row that holds a NaN or an infinity gets a NaN scale and decodes to NaN throughout: int8 can represent neither,
/// and a plausible number instead would hide a broken model. Multiplication by the scale propagates the NaN.
struct int8 {
  using storage = std::int8_t;
  static constexpr bool scaled = true;
  static constexpr std::string_view name = "int8";

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float scale_for(float absmax) noexcept {
    const auto bits = __builtin_bit_cast(std::uint32_t, absmax) & 0x7fffffffu;
    if (bits >= 0x7f800000u) {
      return __builtin_bit_cast(float, 0x7fc00000u);
    }
    const auto scale = absmax / largest;
    const auto bounded = scale < largest_scale ? scale : largest_scale;
    return bounded > smallest_scale ? bounded : smallest_scale;
  }

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr storage encode(float number, float scale) noexcept {
    // Neither scale nor reciprocal is ever subnormal, and a loop over a row divides once. The quotient is at most 127,
    // up to float32's rounding. At 1.5 * 2^23, neighbouring float32 numbers are one apart: adding this number rounds to
    // an integer, which is the low byte of the sum, because the low byte of the number is zero.
    constexpr auto integer_spacing = 0x1.8p23f;
    return static_cast<storage>(__builtin_bit_cast(std::int32_t, rounded_product(number, 1 / scale) + integer_spacing));
  }

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float decode(storage stored, float scale) noexcept {
    return static_cast<float>(stored) * scale;
  }

 private:
  static constexpr float largest = 127;
  static constexpr float smallest_scale = 0x1p-126f;
  static constexpr float largest_scale = 0x1.020406p+121f;  // 127 times the next float32 rounds to infinity
};

static_assert(element<int8>);

}  // namespace pagedkv
