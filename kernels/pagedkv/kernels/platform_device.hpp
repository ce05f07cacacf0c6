#pragma once

// Empty for other compilers.
#if defined(__HIPCC__) || defined(__CUDACC__)

// The names that are equal on every real device. Only the platform headers include this one.

  #include <pagedkv/kernels/attributes.hpp>
  #include <pagedkv/executor/launch_shape.hpp>
  #include <pagedkv/kernels/runtime.hpp>
  #include <pagedkv/kernels/vector.hpp>

  #include <cassert>
  #include <type_traits>

namespace pagedkv::kernels {

[[nodiscard]] inline dim3 to_dim3(const extent& size) { return dim3(size.x, size.y, size.z); }

/// The lane's position in its workgroup, the workgroup's position in the grid, and the sizes of both.
[[nodiscard]] __device__ inline extent local_index() { return {threadIdx.x, threadIdx.y, threadIdx.z}; }
[[nodiscard]] __device__ inline extent workgroup_index() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
[[nodiscard]] __device__ inline extent workgroup_extent() { return {blockDim.x, blockDim.y, blockDim.z}; }
[[nodiscard]] __device__ inline extent grid_extent() { return {gridDim.x, gridDim.y, gridDim.z}; }

/// Waits for every lane of the workgroup. Writes to shared memory before the barrier happen before reads after it.
__device__ inline void barrier() { __syncthreads(); }

/// Each returns the previous value. `pointer` is in global or shared memory.
template <class T>
__device__ T atomic_add(T* target, std::type_identity_t<T> value) {
  return atomicAdd(target, value);
}
template <class T>
__device__ T atomic_max(T* target, std::type_identity_t<T> value) {
  return atomicMax(target, value);
}
template <class T>
__device__ T atomic_min(T* target, std::type_identity_t<T> value) {
  return atomicMin(target, value);
}
template <class T>
__device__ T atomic_exchange(T* target, std::type_identity_t<T> value) {
  return atomicExch(target, value);
}
template <class T>
__device__ T atomic_compare_exchange(T* target, std::type_identity_t<T> expected, std::type_identity_t<T> desired) {
  return atomicCAS(target, expected, desired);
}

/// Static shared memory: declare it `PAGEDKV_SHARED`. The host executor checks every access.
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

/// `from` has the alignment of a vector.
template <int N, class T>
[[nodiscard]] __device__ vector<T, N> load_vector(const T* from) {
  return *reinterpret_cast<const vector<T, N>*>(from);
}

template <int N, class T>
__device__ void store_vector(T* to, const vector<T, N>& values) {
  *reinterpret_cast<vector<T, N>*>(to) = values;
}

/// Read and write a vector in shared memory, from element `first` on.
template <int N, class T>
[[nodiscard]] __device__ vector<T, N> load_shared_vector(const shared_span<T>& from, std::size_t first) {
  return *reinterpret_cast<const vector<T, N>*>(from.values + first);
}

template <int N, class T>
__device__ void store_shared_vector(const shared_span<T>& to, std::size_t first, const vector<T, N>& values) {
  *reinterpret_cast<vector<T, N>*>(to.values + first) = values;
}

/// Debug builds stop the kernel, the host executor reports a fault, release builds do not check.
__device__ inline void check([[maybe_unused]] bool holds, [[maybe_unused]] const char* what) { assert(holds && what); }

template <auto Enqueue, class... Parameters>
[[nodiscard]] runtime::status launch_typed(void (*kernel)(Parameters...), const launch_shape& shape,
                                           runtime::stream stream, std::type_identity_t<Parameters>... parameters) {
  void* pointers[] = {&parameters...};
  return Enqueue(reinterpret_cast<const void*>(kernel), to_dim3(shape.grid), to_dim3(shape.workgroup), pointers,
                 shape.dynamic_shared_bytes, stream);
}

/// Enqueues the kernel. The call copies the arguments.
template <auto Kernel, class... Arguments>
[[nodiscard]] runtime::status launch(const launch_shape& shape, runtime::stream stream, Arguments... arguments) {
  return launch_typed<runtime::launch_kernel>(Kernel, shape, stream, arguments...);
}

/// Launches a kernel that calls `wait_for_previous_kernel`, on devices where an early start is faster.
template <auto Kernel, class... Arguments>
[[nodiscard]] runtime::status launch_following(const launch_shape& shape, runtime::stream stream,
                                               Arguments... arguments) {
  return launch_typed<runtime::launch_following_kernel>(Kernel, shape, stream, arguments...);
}

}  // namespace pagedkv::kernels

#endif
