#pragma once

#include <cstdint>

namespace pagedkv {

/// Blocks by state. They add up to the pool.
struct block_counts {
  std::int64_t free = 0;
  std::int64_t in_use = 0;
  std::int64_t evictable = 0;
  std::int64_t retiring = 0;

  friend bool operator==(const block_counts&, const block_counts&) = default;
};

}  // namespace pagedkv
