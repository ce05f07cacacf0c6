#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pagedkv::kernels {

/// A size in three dimensions, or a position within one, in lanes or in workgroups; x varies fastest.
struct extent {
  std::uint32_t x = 1;
  std::uint32_t y = 1;
  std::uint32_t z = 1;

  friend constexpr bool operator==(const extent&, const extent&) = default;
};

/// The workgroups of a launch, the lanes of each, and the dynamic shared memory of each.
struct launch_shape {
  extent grid;
  extent workgroup;
  std::size_t dynamic_shared_bytes = 0;
};

}  // namespace pagedkv::kernels

namespace pagedkv::runtime {

/// The matrix instructions that a device has, of those that kernels use; see attention/lane_maps.hpp.
enum class matrix_instructions : std::uint8_t {
  none,
  mma,   // NVIDIA, compute capability 8.0 and later
  mfma,  // CDNA 2 and later
  wmma,  // RDNA 3 and later
};

/// Properties of a device that kernels and plans depend on.
struct device_properties {
  std::string name;
  std::size_t memory_bytes = 0;
  int wave_size = 0;       // lanes: 32 or 64
  int num_processors = 0;  // each runs workgroups of its own
  std::size_t shared_bytes_per_workgroup = 0;
  int max_workgroup_size = 0;  // lanes
  matrix_instructions matrices = matrix_instructions::none;
  bool warpgroup_products = false;  // Hopper's, in code that is compiled for them
};

}  // namespace pagedkv::runtime
