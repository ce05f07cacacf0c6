#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pagedkv::runtime {

/// The matrix instructions that a device has, of those that kernels use; see attention/lane_maps.hpp.
enum class matrix_instructions : std::uint8_t {
  none,
  mma,   // NVIDIA, compute capability 8.0 and later
  mfma,  // CDNA 2 and later
  wmma,  // RDNA 3 and later
};

struct device_properties {
  std::string name;
  std::size_t memory_bytes = 0;
  int wave_size = 0;
  int num_processors = 0;  // each runs workgroups of its own
  std::size_t shared_bytes_per_workgroup = 0;
  int max_workgroup_size = 0;
  matrix_instructions matrices = matrix_instructions::none;
  bool warpgroup_products = false;  // Hopper's, in code that is compiled for them
};

}  // namespace pagedkv::runtime
