#pragma once

// Function and variable attributes of kernels.
#if defined(__HIPCC__) || defined(__CUDACC__)
  #define PAGEDKV_KERNEL __global__
  #define PAGEDKV_DEVICE __device__
  #define PAGEDKV_INLINED_DEVICE __device__ __forceinline__
  #define PAGEDKV_SHARED __shared__
  #define PAGEDKV_LAUNCH_BOUNDS(...) __launch_bounds__(__VA_ARGS__)
#else
  /// Attributes of a kernel; of a function that kernels call; of one that compilers would otherwise call in large
  /// kernels, and so move registers to memory; of a variable in shared memory; and of a kernel whose workgroups have so
  /// many lanes at most. On the host executor, kernels may call every function.
  #define PAGEDKV_KERNEL
  #define PAGEDKV_DEVICE
  #define PAGEDKV_INLINED_DEVICE inline
  #define PAGEDKV_SHARED static thread_local
  #define PAGEDKV_LAUNCH_BOUNDS(...)
#endif
