#pragma once

#include <pagedkv/core/host_device.hpp>

#include <cstdint>

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
