#pragma once

#include <pagedkv/core/host_device.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/element/parts/device.hpp>

#include <cstdint>

namespace pagedkv {

/// The upper half of a float32. Rounds to nearest even; numbers beyond the largest become infinity; NaN stays a quiet
/// NaN; subnormals are kept. Integer arithmetic only, so neither rounding mode nor fast-math changes a result; devices
/// with an instruction for it use that, with equal results except for the bits of a NaN.
struct bfloat16 {
  using storage = std::uint16_t;
  static constexpr bool scaled = false;
  static constexpr std::string_view name = "bfloat16";

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float scale_for(float /*absmax*/) noexcept { return 1; }

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr storage encode(float number, float /*scale*/) noexcept {
#if defined(PAGEDKV_DEVICE_BFLOAT16)
    if (!__builtin_is_constant_evaluated()) {
      return static_cast<storage>(device_bfloat16_bits(number, 0.0f) & 0xffffu);
    }
#endif
    const auto bits = __builtin_bit_cast(std::uint32_t, number);
    const auto rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    // Rounding could carry a NaN's payload into the sign, or clear the payload and produce an infinity.
    const auto quiet_nan = bits >> 16 | 0x40u;
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return static_cast<storage>(is_nan ? quiet_nan : rounded);
  }

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float decode(storage stored, float /*scale*/) noexcept {
    return __builtin_bit_cast(float, std::uint32_t{stored} << 16);
  }

#if defined(PAGEDKV_DEVICE_BFLOAT16)
  /// Two numbers, which devices convert together.
  PAGEDKV_HOST_DEVICE static void encode_two(const float* numbers, float /*scale*/, storage* stored) noexcept {
    const auto bits = device_bfloat16_bits(numbers[0], numbers[1]);
    stored[0] = static_cast<storage>(bits & 0xffffu);
    stored[1] = static_cast<storage>(bits >> 16);
  }
#endif
};

static_assert(element<bfloat16>);

}  // namespace pagedkv
