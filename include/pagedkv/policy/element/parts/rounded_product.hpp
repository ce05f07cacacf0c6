#pragma once

#include <pagedkv/core/host_device.hpp>

namespace pagedkv {

/// a * b, rounded to float32 before it is added to anything. Device compilers, and GCC for processors with FMA, fuse a
/// product with a sum, which rounds once and gives other results than the host in ties.
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr float rounded_product(float a, float b) noexcept {
#if defined(__clang__)
  #pragma clang fp contract(off)
#endif
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
  }
#endif
  return a * b;
}

}  // namespace pagedkv
