#pragma once

// Virtual memory of the runtime that `runtime.hpp` chooses, under names of this library's own: addresses are reserved,
// memory is mapped behind them in pieces, made accessible, and unmapped piece by piece. Apart from `runtime.hpp`,
// because NVIDIA has these functions in the driver's interface.

#include <pagedkv/kernels/runtime.hpp>
#include <pagedkv/kernels/runtime_mapping_amd.hpp>
#include <pagedkv/kernels/runtime_mapping_nvidia.hpp>

#if !defined(__HIPCC__) && !defined(__HIP_PLATFORM_AMD__) && !defined(__CUDACC__) && !defined(CUDART_VERSION) && \
    !defined(PAGEDKV_NVIDIA)
  #include <pagedkv/executor/mapping.hpp>
#endif
