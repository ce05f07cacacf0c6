#pragma once

// Loops over arrays in registers must be unrolled.
#if defined(__HIPCC__) || defined(__CUDACC__)
  #define PAGEDKV_UNROLL _Pragma("unroll")
  #define PAGEDKV_NO_UNROLL _Pragma("unroll 1")
#else
  #define PAGEDKV_UNROLL
  #define PAGEDKV_NO_UNROLL
#endif

#include <pagedkv/kernels/attributes.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pagedkv::kernels {

/// Two 16-bit numbers or four bytes, the first in the lowest bits.
using lane_word = std::uint32_t;

/// A number's bits. nvcc 13.0 fails on the cast of an element of an array.
[[nodiscard]] PAGEDKV_DEVICE inline lane_word bits_of(float number) { return __builtin_bit_cast(lane_word, number); }

/// The 16-bit format of a matrix unit that `Number` stands for: bfloat16, else binary16.
template <class Number>
inline constexpr bool is_bfloat16 = Number::name == std::string_view("bfloat16");

template <class T, int N, int... More>
struct register_array {
  using type = typename register_array<T, More...>::type[static_cast<std::size_t>(N)];
};
template <class T, int N>
struct register_array<T, N> {
  using type = T[static_cast<std::size_t>(N)];
};

/// An array with one dimension per size, for values that stay in registers.
template <class T, int... Sizes>
using registers = typename register_array<T, Sizes...>::type;

}  // namespace pagedkv::kernels
