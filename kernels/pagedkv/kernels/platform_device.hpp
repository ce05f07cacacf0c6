#pragma once

// Empty for other compilers.
#if defined(__HIPCC__) || defined(__CUDACC__)

// The names that are pagedkv's own, the same on every real device. Included by the platform headers only.

  #include <pagedkv/kernels/launch_shape.hpp>
  #include <pagedkv/kernels/vector.hpp>

  #include <cassert>
  #include <type_traits>

namespace pagedkv::kernels {

/// Static shared memory: declare it `__shared__`. The host executor checks every access.
template <class T, std::size_t N>
struct shared_array {
  T values[N];

  [[nodiscard]] __device__ T& operator[](std::size_t i) { return values[i]; }
};

template <class T>
struct shared_span {
  T* values;

  [[nodiscard]] __device__ T& operator[](std::size_t i) const { return values[i]; }
};

/// `count` elements that start `byte_offset` bytes into the dynamic shared memory of this launch. Parts must not
/// overlap.
template <class T>
[[nodiscard]] __device__ shared_span<T> dynamic_shared(std::size_t byte_offset, std::size_t /*count*/) {
  extern __shared__ float4 pagedkv_dynamic_shared[];
  return {reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(pagedkv_dynamic_shared) + byte_offset)};
}

template <class T>
[[nodiscard]] __device__ T load(const T* from) {
  return *from;
}

template <class T>
__device__ void store(T* to, std::type_identity_t<T> value) {
  *to = value;
}

/// `from` is aligned as a vector is.
template <int N, class T>
[[nodiscard]] __device__ vector<T, N> load_vector(const T* from) {
  return *reinterpret_cast<const vector<T, N>*>(from);
}

template <int N, class T>
__device__ void store_vector(T* to, const vector<T, N>& values) {
  *reinterpret_cast<vector<T, N>*>(to) = values;
}

/// Debug builds stop the kernel, the host executor reports, release builds do not look.
__device__ inline void check([[maybe_unused]] bool holds, [[maybe_unused]] const char* what) { assert(holds && what); }

template <class... Parameters>
[[nodiscard]] hipError_t launch_typed(void (*kernel)(Parameters...), const launch_shape& shape, hipStream_t stream,
                                      std::type_identity_t<Parameters>... parameters) {
  void* pointers[] = {&parameters...};
  return hipLaunchKernel(reinterpret_cast<const void*>(kernel), shape.grid, shape.workgroup, pointers,
                         shape.dynamic_shared_bytes, stream);
}

/// Enqueues the kernel; the arguments are copied now.
template <auto Kernel, class... Arguments>
[[nodiscard]] hipError_t launch(const launch_shape& shape, hipStream_t stream, Arguments... arguments) {
  return launch_typed(Kernel, shape, stream, arguments...);
}

}  // namespace pagedkv::kernels

#endif
