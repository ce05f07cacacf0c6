#pragma once

#include <pagedkv/core/host_device.hpp>
#include <pagedkv/policy/element/parts/float8_format.hpp>

#include <cstdint>
#include <type_traits>

// Conversion of float32 to bfloat16 in one instruction, in device code that runs. Rounds to nearest even; a NaN stays a
// NaN, but its bits may change.
#if defined(__CUDA_ARCH__)
  #if __CUDA_ARCH__ >= 800
    #define PAGEDKV_DEVICE_BFLOAT16

namespace pagedkv {

/// Two numbers, the first in the lower half.
[[nodiscard]] PAGEDKV_HOST_DEVICE inline std::uint32_t device_bfloat16_bits(float low, float high) noexcept {
  std::uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

}  // namespace pagedkv

  #endif
#endif

// Bytes of several words put together, in device code. `PAGEDKV_DEVICE_BYTES` is defined where that is worth a function
// of its own.
#if defined(__CUDA_ARCH__)

  #define PAGEDKV_DEVICE_BYTES

namespace pagedkv {

/// The low bytes of four words, the first one's lowest: three instructions.
[[nodiscard]] PAGEDKV_HOST_DEVICE inline std::uint32_t device_low_bytes(std::uint32_t first, std::uint32_t second,
                                                                        std::uint32_t third,
                                                                        std::uint32_t fourth) noexcept {
  const auto low = __byte_perm(first, second, 0x0040);
  const auto high = __byte_perm(third, fourth, 0x0040);
  return __byte_perm(low, high, 0x5410);
}

}  // namespace pagedkv

#endif

// Conversion between float32 and IEEE binary16 in one instruction, in device code that runs. Rounds to nearest even; a
// NaN stays a NaN, but its payload may change.
#if defined(__HIP_DEVICE_COMPILE__)

  #define PAGEDKV_DEVICE_HALF

namespace pagedkv {

[[nodiscard]] PAGEDKV_HOST_DEVICE inline std::uint16_t device_half_bits(float number) noexcept {
  // Hides a product from the compiler, whose one instruction for product and rounding adds 0 and so makes -0 one of 0.
  asm("" : "+v"(number));
  return __builtin_bit_cast(std::uint16_t, static_cast<_Float16>(number));
}

[[nodiscard]] PAGEDKV_HOST_DEVICE inline float device_half_value(std::uint16_t bits) noexcept {
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
}

}  // namespace pagedkv

#elif defined(__CUDA_ARCH__)

  #define PAGEDKV_DEVICE_HALF

namespace pagedkv {

[[nodiscard]] PAGEDKV_HOST_DEVICE inline std::uint16_t device_half_bits(float number) noexcept {
  std::uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(number));
  return bits;
}

[[nodiscard]] PAGEDKV_HOST_DEVICE inline float device_half_value(std::uint16_t bits) noexcept {
  float number;
  asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(bits));
  return number;
}

}  // namespace pagedkv

#endif

// Conversion between float32 and numbers of 8 bits by a device's own instructions: two numbers at a time, the first in
// the low byte. `PAGEDKV_DEVICE_FLOAT8` is defined where the device that code is compiled for has any. Other devices
// have tools for such a conversion.

#if defined(__HIP_DEVICE_COMPILE__) && (defined(__gfx942__) || defined(__gfx950__) || defined(__GFX12__))
  #define PAGEDKV_DEVICE_FLOAT8
#elif defined(__CUDA_ARCH__)
  #if __CUDA_ARCH__ >= 890
    #define PAGEDKV_DEVICE_FLOAT8
  #endif
#endif

#if defined(PAGEDKV_DEVICE_HALF)

namespace pagedkv {

/// Bytes 2 * Pair and 2 * Pair + 1 of four, each the upper half of 16 bits.
template <int Pair>
[[nodiscard]] PAGEDKV_HOST_DEVICE inline std::uint32_t upper_bytes(std::uint32_t four) noexcept {
  #if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_perm(four, 0u, Pair == 0 ? 0x050c040cu : 0x070c060cu);
  #else
  std::uint32_t spread;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(spread) : "r"(four), "n"(Pair == 0 ? 0x1404 : 0x3424));
  return spread;
  #endif
}

/// Products of pairs of binary16 numbers.
[[nodiscard]] PAGEDKV_HOST_DEVICE inline std::uint32_t device_half_products(std::uint32_t a, std::uint32_t b) noexcept {
  #if defined(__HIP_DEVICE_COMPILE__)
  using halves = _Float16 __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(halves, a) * __builtin_bit_cast(halves, b));
  #else
  std::uint32_t products;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(products) : "r"(a), "r"(b));
  return products;
  #endif
}

/// Halves of pairs of binary16 numbers that are not negative, with the largest exponent taken for a number's, too.
[[nodiscard]] PAGEDKV_HOST_DEVICE inline std::uint32_t device_half_halves(std::uint32_t magnitudes) noexcept {
  // An exponent of one less; without one, all bits are the mantissa's, and half of them is the larger number.
  #if defined(__HIP_DEVICE_COMPILE__)
  using shorts = short __attribute__((ext_vector_type(2)));
  const auto all = __builtin_bit_cast(shorts, magnitudes);
  return __builtin_bit_cast(std::uint32_t, __builtin_elementwise_max(all - shorts{0x400, 0x400}, all >> shorts{1, 1}));
  #else
  const auto halve = [](std::uint32_t magnitude) { return magnitude < 0x800u ? magnitude >> 1 : magnitude - 0x400u; };
  return halve(magnitudes & 0xffffu) | halve(magnitudes >> 16) << 16;
  #endif
}

}  // namespace pagedkv

#endif

#if defined(PAGEDKV_DEVICE_FLOAT8)

namespace pagedkv {

struct two_numbers {
  float low;
  float high;
};

  #if defined(__HIP_DEVICE_COMPILE__)

/// Whether the device's instructions convert this format.
template <class Format>
inline constexpr bool device_converts_float8 =
    #if defined(__gfx942__)
    std::is_same_v<Format, e4m3fnuz_format> || std::is_same_v<Format, e5m2fnuz_format>;
    #else
    std::is_same_v<Format, e4m3_format> || std::is_same_v<Format, e5m2_format>;
    #endif

[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr float nan_for_infinity(float number) noexcept {
  const auto magnitude = __builtin_bit_cast(std::uint32_t, number) & 0x7fffffffu;
  return magnitude == 0x7f800000u ? __builtin_bit_cast(float, 0x7fc00000u) : number;
}

/// Finite numbers beyond the largest become the largest.
template <class Format>
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::uint32_t device_float8_bits(float low, float high) noexcept {
  constexpr auto largest = static_cast<float>(Format::largest);
  // The instruction for the median gives a number also for NaN.
  const auto within = [](float number) {
    return number == number ? __builtin_amdgcn_fmed3f(number, -largest, largest) : number;
  };
  auto bits = 0;
  if constexpr (Format::mantissa_bits == 3) {
    bits = __builtin_amdgcn_cvt_pk_fp8_f32(within(low), within(high), 0, false);
  } else {
    bits = __builtin_amdgcn_cvt_pk_bf8_f32(within(low), within(high), 0, false);
  }
  return static_cast<std::uint32_t>(bits);
}

template <class Format>
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr two_numbers device_float8_values(std::uint32_t bits) noexcept {
  if constexpr (Format::mantissa_bits == 3) {
    const auto values = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(bits), false);
    return {values[0], values[1]};
  } else {
    const auto values = __builtin_amdgcn_cvt_pk_f32_bf8(static_cast<int>(bits), false);
    return {values[0], values[1]};
  }
}

/// Decodes to two numbers of binary16, which hold every number of 8 bits.
template <class Format>
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::uint32_t device_float8_halves(std::uint32_t bits) noexcept {
  const auto values = device_float8_values<Format>(bits);
  return __builtin_bit_cast(std::uint32_t, __builtin_amdgcn_cvt_pkrtz(values.low, values.high));
}

  #else

template <class Format>
inline constexpr bool device_converts_float8 =
    std::is_same_v<Format, e4m3_format> || std::is_same_v<Format, e5m2_format>;

[[nodiscard]] PAGEDKV_HOST_DEVICE inline float nan_for_infinity(float number) noexcept {
  float result;
  asm("fma.rn.f32 %0, %1, 0f00000000, %1;" : "=f"(result) : "f"(number));  // infinity times zero is NaN
  return result;
}

/// Finite numbers beyond the largest become the largest.
template <class Format>
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::uint32_t device_float8_bits(float low, float high) noexcept {
  std::uint16_t bits;
  if constexpr (Format::mantissa_bits == 3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  }
  return bits;
}

/// Decodes to two numbers of binary16, which hold every number of 8 bits.
template <class Format>
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::uint32_t device_float8_halves(std::uint32_t bits) noexcept {
  std::uint32_t halves;
  if constexpr (Format::mantissa_bits == 3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(bits)));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(bits)));
  }
  return halves;
}

template <class Format>
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr two_numbers device_float8_values(std::uint32_t bits) noexcept {
  const auto halves = device_float8_halves<Format>(bits);
  return {device_half_value(static_cast<std::uint16_t>(halves)),
          device_half_value(static_cast<std::uint16_t>(halves >> 16))};
}

  #endif

}  // namespace pagedkv

#endif
