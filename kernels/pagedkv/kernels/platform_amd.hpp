#pragma once

// Empty for other compilers.
#if defined(__HIPCC__)

  #include <hip/hip_runtime.h>

  #include <pagedkv/kernels/platform_device.hpp>

#endif
