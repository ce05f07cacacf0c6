#pragma once

#include <pagedkv/core/host_device.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/element/parts/device.hpp>
#include <pagedkv/policy/element/parts/numbers.hpp>

#include <cstdint>

namespace pagedkv {

/// Symmetric 8-bit integers, scaled per token and KV head: scale = absmax / 127, within the bounds of `row_scale`.
/// Rounds to nearest even; a finite row's error is at most scale / 2 per number, up to float32's own rounding. Numbers
/// beyond 127 times the scale, which cannot occur in a row of that scale, encode to an unspecified value.
///
/// A row that holds a NaN or an infinity gets a NaN scale and decodes to NaN throughout: int8 can represent neither,
/// and a plausible number instead would hide a broken model. Multiplication by the scale propagates the NaN.
struct int8 {
  using storage = std::int8_t;
  static constexpr bool scaled = true;
  static constexpr std::string_view name = "int8";

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float scale_for(float absmax) noexcept {
    return row_scale<127>(absmax);
  }

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr storage encode(float number, float scale) noexcept {
    return static_cast<storage>(word_of(number, scale));
  }

#if defined(PAGEDKV_DEVICE_BYTES)
  /// Four numbers, the first in the lowest byte.
  [[nodiscard]] PAGEDKV_HOST_DEVICE static std::uint32_t encode_four(const float* numbers, float scale) noexcept {
    return device_low_bytes(word_of(numbers[0], scale), word_of(numbers[1], scale), word_of(numbers[2], scale),
                            word_of(numbers[3], scale));
  }
#endif

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float decode(storage stored, float scale) noexcept {
    return static_cast<float>(stored) * scale;
  }

 private:
  /// A word whose low byte is the encoded number.
  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr std::uint32_t word_of(float number, float scale) noexcept {
    // Neither scale nor reciprocal is ever subnormal, and a loop over a row divides once. The quotient is at most 127,
    // up to float32's rounding. At 1.5 * 2^23, neighbouring float32 numbers are one apart: adding this number rounds to
    // an integer, which is the low byte of the sum, because the low byte of the number is zero.
    constexpr auto integer_spacing = 0x1.8p23f;
    return __builtin_bit_cast(std::uint32_t, rounded_product(number, 1 / scale) + integer_spacing);
  }
};

static_assert(element<int8>);

}  // namespace pagedkv
