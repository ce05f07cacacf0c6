#pragma once

#include <pagedkv/core/host_device.hpp>

#include <cstdint>

namespace pagedkv {

/// The scale of a row with this largest magnitude, for an element whose largest stored number is `Largest`. At least
/// the smallest normal float32, so that an all-zero row causes no division by zero and a subnormal row no imprecise
/// one, and small enough that `Largest` times it does not overflow. NaN if the magnitude is not finite.
template <std::int32_t Largest>
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr float row_scale(float absmax) noexcept {
  constexpr auto smallest_scale = 0x1p-126f;
  constexpr auto largest_scale = [] {
    constexpr auto largest_number = 0x1.fffffep+127;
    constexpr auto nearest = static_cast<float>(largest_number / Largest);
    constexpr auto below = static_cast<float>(largest_number / Largest * (1 - 0x1p-24));
    return double{nearest} * Largest > largest_number ? below : nearest;
  }();
  const auto bits = __builtin_bit_cast(std::uint32_t, absmax) & 0x7fffffffu;
  if (bits >= 0x7f800000u) {
    return __builtin_bit_cast(float, 0x7fc00000u);
  }
  const auto scale = absmax / Largest;
  const auto bounded = scale < largest_scale ? scale : largest_scale;
  return bounded > smallest_scale ? bounded : smallest_scale;
}

}  // namespace pagedkv
