#pragma once

#include <pagedkv/core/host_device.hpp>

#include <cstdint>

// Functions for processors with AVX2 and F16C, in programs that are compiled for older ones, too: marked with
// `PAGEDKV_WIDE`, and called only if `has_wide_vectors` is true. `PAGEDKV_WIDE_VECTORS` is defined if there are any.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__CUDA_ARCH__) && !defined(__HIP_DEVICE_COMPILE__)
  #define PAGEDKV_WIDE_VECTORS
  #define PAGEDKV_WIDE __attribute__((target("avx2,f16c")))

namespace pagedkv {

[[nodiscard]] inline bool find_wide_vectors() noexcept {
  // Also checks that the operating system preserves wide registers.
  if (!__builtin_cpu_supports("avx2")) {
    return false;
  }
  auto leaf = 1U;
  auto features = 0U;
  asm("cpuid" : "+a"(leaf), "+c"(features) : : "ebx", "edx");
  return (features >> 29 & 1U) != 0;
}

/// Call it last: below -O2, compilers omit this instruction, and the program's other vector instructions then incur
/// penalties of fifty cycles.
PAGEDKV_WIDE inline void leave_wide_vectors() noexcept { __builtin_ia32_vzeroupper(); }

/// False until static initialisation; the results are the same either way.
inline const bool has_wide_vectors = find_wide_vectors();

}  // namespace pagedkv

#endif

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

/// One of two numbers, without a jump. Compilers turn a conditional expression into a jump around float arithmetic,
/// which prevents vectorisation.
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::uint32_t select_bits(bool condition, std::uint32_t yes,
                                                                      std::uint32_t no) noexcept {
  const auto mask = 0u - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

}  // namespace pagedkv
