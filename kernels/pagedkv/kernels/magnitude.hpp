#pragma once

#include <pagedkv/kernels/platform.hpp>

namespace pagedkv::kernels {

/// Bits of the larger of two magnitudes: one given by its bits, one of a number. As integers, magnitudes order like
/// numbers, with infinity above every number and NaN above infinity.
[[nodiscard]] PAGEDKV_DEVICE inline std::int32_t larger_magnitude(std::int32_t magnitude_bits, float number) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  // One instruction that keeps NaN, at twice the rate of integer instructions.
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(__builtin_bit_cast(float, magnitude_bits)), "f"(fabsf(number)));
  return __builtin_bit_cast(std::int32_t, larger);
#else
  const auto bits = __builtin_bit_cast(std::int32_t, number) & 0x7fffffff;
  return bits > magnitude_bits ? bits : magnitude_bits;
#endif
}

}  // namespace pagedkv::kernels
