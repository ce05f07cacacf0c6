#pragma once

#include <pagedkv/core/host_device.hpp>

namespace pagedkv {

/// a * b, rounded to float32 before anything is added to it. Compilers for devices fuse a product with a sum, which
/// rounds once and differs from the host in ties. (So does GCC where it is told that the processor can.)
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr float rounded_product(float a, float b) noexcept {
#if defined(__CUDA_ARCH__)
  float product;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
  return product;
#else
  #if defined(__clang__)
    #pragma clang fp contract(off)
  #endif
  return a * b;
#endif
}

}  // namespace pagedkv
