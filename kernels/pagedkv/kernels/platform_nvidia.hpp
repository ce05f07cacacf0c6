#pragma once

// Empty for other compilers.
#if defined(__CUDACC__) && !defined(__HIPCC__)

  #include <cuda_runtime.h>

  #include <pagedkv/kernels/platform_device.hpp>

namespace pagedkv::kernels {

/// Whether the lanes of a wave put vectors that they store into the order of addresses first, by way of shared memory.
inline constexpr bool joins_stores = true;

/// Workgroups of kernels over tiles of rows that a processor is to have room for, which limits a lane's registers; 0:
/// as many as the compiler finds right.
inline constexpr int workgroups_of_tiles = 5;

/// Whether lanes without data form pointers, too. Here that takes 6 to 14 more registers.
inline constexpr bool points_on_every_lane = false;

/// Lanes of a wave.
[[nodiscard]] __device__ inline int wave_size() { return warpSize; }

/// A value that is equal on every lane of the wave: AMD's compiler then keeps it in a scalar register.
[[nodiscard]] __device__ inline int uniform(int value) { return value; }

/// The value: AMD's compiler then keeps it in a vector register.
[[nodiscard]] __device__ inline std::int32_t of_lane(std::int32_t value) { return value; }

/// The kernel's first argument, which `argument` is: between distant uses its members need no registers on AMD.
template <class T>
[[nodiscard]] __device__ const T& read_again(const T& argument) {
  return argument;
}

/// A kernel launched with `launch_following_kernel` may start while the previous kernel still runs; this call waits for
/// the end of the previous kernel.
__device__ inline void wait_for_previous_kernel() {
  #if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  #endif
}
__device__ inline void let_next_kernel_start() {
  #if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  #endif
}

// Every lane of the wave takes part; the executor checks this. `width` is a power of two up to the wave size: lanes
// exchange within aligned groups of this many lanes.
inline constexpr auto whole_wave = 0xFFFFFFFFU;

template <class T>
[[nodiscard]] __device__ T shuffle(T value, int source, int width = 32) {
  return __shfl_sync(whole_wave, value, source, width);
}
template <class T>
[[nodiscard]] __device__ T shuffle_up(T value, unsigned delta, int width = 32) {
  return __shfl_up_sync(whole_wave, value, delta, width);
}
template <class T>
[[nodiscard]] __device__ T shuffle_down(T value, unsigned delta, int width = 32) {
  return __shfl_down_sync(whole_wave, value, delta, width);
}
template <class T>
[[nodiscard]] __device__ T shuffle_xor(T value, int mask, int width = 32) {
  return __shfl_xor_sync(whole_wave, value, mask, width);
}
[[nodiscard]] __device__ inline unsigned long long ballot(int predicate) {
  return __ballot_sync(whole_wave, predicate);
}
/// Lanes of the wave see what others wrote to shared memory before.
__device__ inline void meet_wave() { __syncwarp(); }
/// Does what `meet_wave` does, where all lanes of the workgroup call it.
__device__ inline void order_wave() { meet_wave(); }
[[nodiscard]] __device__ inline int any(int predicate) { return __any_sync(whole_wave, predicate); }
[[nodiscard]] __device__ inline int all(int predicate) { return __all_sync(whole_wave, predicate); }

}  // namespace pagedkv::kernels

#endif
