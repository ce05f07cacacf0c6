#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstdint>

namespace pagedkv {

/// The end of a chain of blocks: the published block that the next one continues, or the root of a salt.
struct chain_link {
  std::uint64_t hash = 0;      // chained
  std::uint64_t identity = 0;  // of the contents from the root to here; of a root: its salt
  block_id block = no_block;   // `no_block` for a root

  friend bool operator==(const chain_link&, const chain_link&) = default;
};

}  // namespace pagedkv
