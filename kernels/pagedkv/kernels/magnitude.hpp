#pragma once

#include <pagedkv/kernels/platform.hpp>

#include <cstdint>
#include <string_view>

#if defined(__CUDA_ARCH__)
  #if __CUDA_ARCH__ >= 800
    #define PAGEDKV_MAGNITUDES_OF_PAIRS
  #endif
#endif

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

#if defined(PAGEDKV_MAGNITUDES_OF_PAIRS)

/// Whether two numbers of `Element` are a word of either format of 16 bits.
template <class Element>
inline constexpr bool has_magnitudes_of_pairs = requires {
  requires Element::name == std::string_view("float16") || Element::name == std::string_view("bfloat16");
};

template <class Element>
inline constexpr bool is_pair_of_bfloat16 = Element::name == std::string_view("bfloat16");

/// The larger magnitudes of two pairs of 16-bit numbers: one instruction that keeps NaN.
template <class Element>
[[nodiscard]] PAGEDKV_DEVICE std::uint32_t larger_magnitudes(std::uint32_t a, std::uint32_t b) {
  std::uint32_t larger;
  if constexpr (is_pair_of_bfloat16<Element>) {
    asm("{.reg .b32 p, q; abs.bf16x2 p, %1; abs.bf16x2 q, %2; max.NaN.bf16x2 %0, p, q;}"
        : "=r"(larger)
        : "r"(a), "r"(b));
  } else {
    asm("{.reg .b32 p, q; abs.f16x2 p, %1; abs.f16x2 q, %2; max.NaN.f16x2 %0, p, q;}" : "=r"(larger) : "r"(a), "r"(b));
  }
  return larger;
}

#else

template <class Element>
inline constexpr bool has_magnitudes_of_pairs = false;

#endif

}  // namespace pagedkv::kernels
