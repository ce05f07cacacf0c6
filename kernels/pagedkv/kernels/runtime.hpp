#pragma once

// The device runtime under pagedkv's own names, in `pagedkv::runtime`. The implementation is
//
//  - AMD's with a compiler for HIP, or with `__HIP_PLATFORM_AMD__`, which HIP requires of host compilers;
//  - NVIDIA's with a compiler for CUDA, after CUDA's headers, or with `PAGEDKV_NVIDIA`;
//  - the host executor otherwise.
//
// All files of a program must use the same one. A host compiler that calls a device's runtime sees only declarations of
// the functions that launch kernels; `PAGEDKV_COMPILES_KERNELS` is defined in all other cases.

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
