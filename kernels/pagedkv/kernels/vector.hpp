#pragma once

#include <cstddef>

namespace pagedkv::kernels {

/// The most bytes that one lane moves at once.
inline constexpr auto vector_bytes = 16;

/// The numbers that so many bytes hold.
template <class T>
inline constexpr auto numbers_in_vector = vector_bytes / static_cast<int>(sizeof(T));

/// N neighbouring elements that are read or written together, in accesses of at most `vector_bytes`. N times the size
/// of T is a power of two.
template <class T, int N>
struct alignas(sizeof(T) * N < vector_bytes ? sizeof(T) * N : vector_bytes) vector {
  T values[static_cast<std::size_t>(N)];
};

}  // namespace pagedkv::kernels
