#pragma once

// Empty for other compilers.
#if defined(__HIPCC__)

  // On these targets, clang 21 confuses the 16-bit halves of registers, and some kernels lose numbers.
  #if __clang_major__ == 21 && !defined(PAGEDKV_REAL_TRUE16_OFF) && \
      (defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__))
    #error "clang 21 miscompiles kernels for gfx110x: use another version, or \
-Xclang -target-feature -Xclang -real-true16 -DPAGEDKV_REAL_TRUE16_OFF"
  #endif

  #include <hip/hip_runtime.h>

  #include <pagedkv/kernels/platform_device.hpp>

namespace pagedkv::kernels {

/// Whether the lanes of a wave put vectors that they store into the order of addresses first, by way of shared memory.
/// Not measured here, and shared memory is scarcer.
inline constexpr bool joins_stores = false;

/// Workgroups of kernels over tiles of rows that a processor is to have room for, which limits a lane's registers; 0:
/// as many as the compiler finds right.
inline constexpr int workgroups_of_tiles = 0;

/// Whether lanes without data form pointers, too. For a pointer that only some lanes set, the compilers emit generic
/// loads, which are slower than loads from global memory.
inline constexpr bool points_on_every_lane = true;

/// Lanes of a wave: 32 or 64.
[[nodiscard]] __device__ inline int wave_size() { return warpSize; }

/// A value that is equal on every lane of the wave: the compiler then keeps it in a scalar register.
[[nodiscard]] __device__ inline int uniform(int value) { return __builtin_amdgcn_readfirstlane(value); }

/// The value in a vector register, also if it is equal on every lane: where scalar registers do not suffice.
[[nodiscard]] __device__ inline std::int32_t of_lane(std::int32_t value) {
  asm("" : "+v"(value));
  return value;
}

/// The kernel's first argument, which `argument` is, read from memory again: between distant uses its members need no
/// registers.
template <class T>
[[nodiscard]] __device__ const T& read_again(const T& /*argument*/) {
  const auto* from = __builtin_amdgcn_kernarg_segment_ptr();
  asm volatile("" : "+s"(from));
  return *(const T*)(const __attribute__((address_space(4))) T*)from;
}

// Kernels of a stream run one after the other.
__device__ inline void wait_for_previous_kernel() {}
__device__ inline void let_next_kernel_start() {}

// Every lane of the wave takes part; the executor checks this. `width` is a power of two up to the wave size: lanes
// exchange within aligned groups of this many lanes.
template <class T>
[[nodiscard]] __device__ T shuffle(T value, int source, int width = warpSize) {
  return __shfl(value, source, width);
}
template <class T>
[[nodiscard]] __device__ T shuffle_up(T value, unsigned delta, int width = warpSize) {
  return __shfl_up(value, delta, width);
}
template <class T>
[[nodiscard]] __device__ T shuffle_down(T value, unsigned delta, int width = warpSize) {
  return __shfl_down(value, delta, width);
}
template <class T>
[[nodiscard]] __device__ T shuffle_xor(T value, int mask, int width = warpSize) {
  return __shfl_xor(value, mask, width);
}
[[nodiscard]] __device__ inline unsigned long long ballot(int predicate) { return __ballot(predicate); }
/// Lanes of the wave see what others wrote to shared memory before.
__device__ inline void meet_wave() { __builtin_amdgcn_wave_barrier(); }
/// Does what `meet_wave` does, where all lanes of the workgroup call it.
__device__ inline void order_wave() { meet_wave(); }
[[nodiscard]] __device__ inline int any(int predicate) { return __any(predicate); }
[[nodiscard]] __device__ inline int all(int predicate) { return __all(predicate); }

}  // namespace pagedkv::kernels

#endif
