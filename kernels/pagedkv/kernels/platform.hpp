#pragma once

// The names that kernels use, in `pagedkv::kernels`, and the runtime that launches them. The compiler determines the
// implementation.

#include <pagedkv/executor/launch_shape.hpp>
#include <pagedkv/kernels/attributes.hpp>
#include <pagedkv/kernels/runtime.hpp>
#include <pagedkv/kernels/vector.hpp>

#if defined(__HIPCC__)
  #include <pagedkv/kernels/platform_amd.hpp>
#elif defined(__CUDACC__)
  #include <pagedkv/kernels/platform_nvidia.hpp>
#elif defined(PAGEDKV_COMPILES_KERNELS)
  #include <pagedkv/kernels/platform_host.hpp>
#endif
