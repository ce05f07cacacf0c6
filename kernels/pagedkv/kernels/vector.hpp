#pragma once

#include <cstddef>

namespace pagedkv::kernels {

/// N neighbouring elements that move together. N times the size of T is a power of two.
template <class T, int N>
struct alignas(sizeof(T) * static_cast<std::size_t>(N)) vector {
  T values[static_cast<std::size_t>(N)];
};

/// The most bytes that one lane moves at once.
inline constexpr auto vector_bytes = 16;

}  // namespace pagedkv::kernels
