#pragma once

// The device runtime under pagedkv's own names, in `pagedkv::runtime`. Which one stands behind them:
//
//  - a compiler for HIP, or `__HIP_PLATFORM_AMD__`, which HIP asks of host compilers: AMD's;
//  - a compiler for CUDA, CUDA's headers read before this one, or `PAGEDKV_NVIDIA`: NVIDIA's;
//  - otherwise the host executor.
//
// All files of a program agree. A host compiler that calls a device's runtime does not see kernels, only declarations of
// the functions that launch them; `PAGEDKV_COMPILES_KERNELS` is defined everywhere else.

#if defined(__HIPCC__) || defined(__HIP_PLATFORM_AMD__)
  #include <pagedkv/kernels/runtime_amd.hpp>
  #if defined(__HIPCC__)
    #define PAGEDKV_COMPILES_KERNELS
  #endif
#elif defined(__CUDACC__) || defined(CUDART_VERSION) || defined(PAGEDKV_NVIDIA)
  #include <pagedkv/kernels/runtime_nvidia.hpp>
  #if defined(__CUDACC__)
    #define PAGEDKV_COMPILES_KERNELS
  #endif
#else
  #include <pagedkv/executor/runtime.hpp>
  #define PAGEDKV_COMPILES_KERNELS
#endif
