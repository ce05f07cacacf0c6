#pragma once

// Empty for other compilers.
#if defined(__HIPCC__)

  #include <hip/hip_runtime.h>

  #include <pagedkv/kernels/platform_device.hpp>

namespace pagedkv::kernels {

template <class... Parameters>
[[nodiscard]] hipError_t launch_typed(void (*kernel)(Parameters...), const launch_shape& shape, hipStream_t stream,
                                      std::type_identity_t<Parameters>... parameters) {
  void* pointers[] = {&parameters...};
  return hipLaunchKernel(reinterpret_cast<const void*>(kernel), shape.grid, shape.workgroup, pointers,
                         shape.dynamic_shared_bytes, stream);
}

/// Enqueues the kernel; the arguments are copied now.
template <auto Kernel, class... Arguments>
[[nodiscard]] hipError_t launch(const launch_shape& shape, hipStream_t stream, Arguments... arguments) {
  return launch_typed(Kernel, shape, stream, arguments...);
}

}  // namespace pagedkv::kernels

#endif
