#pragma once

// Function and variable attributes of kernels. On the host executor, every function may be called by kernels. Inlined
// functions are those that compilers would call in large kernels, and so move registers to memory.
#if defined(__HIPCC__) || defined(__CUDACC__)
  #define PAGEDKV_KERNEL __global__
  #define PAGEDKV_DEVICE __device__
  #define PAGEDKV_INLINED_DEVICE __device__ __forceinline__
  #define PAGEDKV_SHARED __shared__
  #define PAGEDKV_LAUNCH_BOUNDS(...) __launch_bounds__(__VA_ARGS__)
#else
  #define PAGEDKV_KERNEL
  #define PAGEDKV_DEVICE
  #define PAGEDKV_INLINED_DEVICE inline
  #define PAGEDKV_SHARED static thread_local
  #define PAGEDKV_LAUNCH_BOUNDS(...)
#endif
