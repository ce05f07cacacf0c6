#pragma once

/// Marks functions that kernels call, too. Empty unless a HIP or CUDA compiler reads the header.
#if defined(__HIPCC__) || defined(__CUDACC__)
  #define PAGEDKV_HOST_DEVICE __host__ __device__
#else
  #define PAGEDKV_HOST_DEVICE
#endif
