#pragma once

#if defined(__HIPCC__)
  #include <hip/hip_runtime.h>
#elif defined(__CUDACC__)
  #include <cuda_runtime.h>
#else
  #include <pagedkv/kernels/executor/types.hpp>
#endif

#include <cstddef>

namespace pagedkv::kernels {

struct launch_shape {
  dim3 grid;
  dim3 workgroup;
  std::size_t dynamic_shared_bytes = 0;
};

}  // namespace pagedkv::kernels
