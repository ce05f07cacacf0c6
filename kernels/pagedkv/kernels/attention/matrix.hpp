#pragma once

// Matrix instructions and tile readers for the compiler in use.

#if defined(__HIPCC__)
  #include <pagedkv/kernels/attention/matrix_amd.hpp>
#elif defined(__CUDACC__)
  #include <pagedkv/kernels/attention/matrix_nvidia.hpp>
#else
  #include <pagedkv/kernels/attention/matrix_host.hpp>
#endif
