#pragma once

// Included by the platform headers, after `dim3`.

#include <cstddef>

namespace pagedkv::kernels {

struct launch_shape {
  dim3 grid;
  dim3 workgroup;
  std::size_t dynamic_shared_bytes = 0;
};

}  // namespace pagedkv::kernels
