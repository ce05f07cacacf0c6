#pragma once

#include <cstddef>
#include <cstdint>

namespace pagedkv::kernels {

/// A size in three dimensions, or a position within one; x varies fastest.
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
