#pragma once

#include <pagedkv/core/host_device.hpp>

#include <cstdint>

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
