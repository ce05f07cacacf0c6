#pragma once

// What kernels are written against: HIP's own names, and the few that are pagedkv's own (launch, load, store, shared
// memory, check). Which implementation stands behind them follows from the compiler that reads this.

#if defined(__HIPCC__)
  #include <pagedkv/kernels/platform_amd.hpp>
#elif defined(__CUDACC__)
  #include <pagedkv/kernels/platform_nvidia.hpp>
#else
  #include <pagedkv/kernels/platform_host.hpp>
#endif
