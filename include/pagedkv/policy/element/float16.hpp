#pragma once

#include <pagedkv/core/host_device.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/element/parts/device.hpp>
#include <pagedkv/policy/element/parts/numbers.hpp>

#include <cstdint>
#include <cstring>

namespace pagedkv {

/// IEEE binary16. Rounds to nearest even; magnitudes from 65520 become infinity; NaN stays a quiet NaN with the upper
/// bits of its payload; subnormals are kept; a signalling NaN decodes to a quiet one. All cases are computed and one is
/// selected, so that loops vectorise. Rows use the processor's conversion instruction if it has one, with equal bits;
/// devices use theirs, with equal results except for the payload of a NaN.
struct float16 {
  using storage = std::uint16_t;
  static constexpr bool scaled = false;
  static constexpr std::string_view name = "float16";

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float scale_for(float /*absmax*/) noexcept { return 1; }

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr storage encode(float number, float /*scale*/) noexcept {
#if defined(PAGEDKV_DEVICE_HALF)
    if (!__builtin_is_constant_evaluated()) {
      return device_half_bits(number);
    }
#endif
    const auto bits = __builtin_bit_cast(std::uint32_t, number);
    const auto sign = bits >> 16 & 0x8000u;
    const auto magnitude = bits & 0x7fffffffu;
    const auto normal = (magnitude - exponent_shift + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    // Float32 numbers from 0.5 to 1 have the same spacing as binary16 subnormals, so the addition itself rounds.
    const auto aligned = __builtin_bit_cast(float, magnitude) + 0.5f;
    const auto subnormal = __builtin_bit_cast(std::uint32_t, aligned) - half_bits;
    const auto quiet_nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
    auto result = select_bits(magnitude < smallest_normal, subnormal, normal);
    result = select_bits(magnitude >= first_infinite, 0x7c00u, result);
    result = select_bits(magnitude > 0x7f800000u, quiet_nan, result);
    return static_cast<storage>(sign | result);
  }

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float decode(storage stored, float /*scale*/) noexcept {
#if defined(PAGEDKV_DEVICE_HALF)
    if (!__builtin_is_constant_evaluated()) {
      return device_half_value(stored);
    }
#endif
    const auto sign = (stored & 0x8000u) << 16;
    const auto magnitude = stored & 0x7fffu;
    const auto normal = (magnitude << 13) + exponent_shift;
    // Adding and removing an implicit leading one keeps operands normal: subnormal ones are slow or flushed to zero.
    const auto with_one = __builtin_bit_cast(float, (magnitude << 13) + smallest_normal);
    const auto subnormal = __builtin_bit_cast(std::uint32_t, with_one - 0x1p-14f);
    auto result = select_bits(magnitude < 0x400u, subnormal, normal);
    result = select_bits(magnitude >= 0x7c00u, normal + exponent_shift, result);
    result |= select_bits(magnitude > 0x7c00u, quiet_bit, 0u);
    return __builtin_bit_cast(float, sign | result);
  }

#if defined(PAGEDKV_WIDE_VECTORS)
  PAGEDKV_WIDE static void encode_eight(const float* numbers, float /*scale*/, storage* stored) noexcept {
    constexpr auto to_nearest_even = 0;
    auto wide = eight_numbers{};
    std::memcpy(&wide, numbers, sizeof(wide));
    const auto halves = __builtin_ia32_vcvtps2ph256(wide, to_nearest_even);
    std::memcpy(stored, &halves, sizeof(halves));
  }

  PAGEDKV_WIDE static void decode_eight(const storage* stored, float /*scale*/, float* numbers) noexcept {
    auto halves = eight_halves{};
    std::memcpy(&halves, stored, sizeof(halves));
    const auto wide = __builtin_ia32_vcvtph2ps256(halves);
    std::memcpy(numbers, &wide, sizeof(wide));
  }
#endif

 private:
#if defined(PAGEDKV_WIDE_VECTORS)
  using eight_numbers [[gnu::vector_size(32)]] = float;
  using eight_halves [[gnu::vector_size(16)]] = short;
#endif

  // Bit patterns of float32 magnitudes.
  static constexpr std::uint32_t exponent_shift = (127u - 15u) << 23;
  static constexpr std::uint32_t quiet_bit = 0x400000u;
  static constexpr std::uint32_t half_bits = 0x3f000000u;        // 0.5
  static constexpr std::uint32_t smallest_normal = 0x38800000u;  // 2^-14
  static constexpr std::uint32_t first_infinite = 0x477ff000u;   // 65520: halfway from 65504, the largest, to 2^16
};

static_assert(element<float16>);

}  // namespace pagedkv
