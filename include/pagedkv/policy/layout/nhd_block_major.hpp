#pragma once

#include <pagedkv/policy/layout/concept.hpp>

namespace pagedkv {

/// One token's heads lie together, and so do all layers of one block: one run for each transfer of a block.
struct nhd_block_major {
  static constexpr auto dimensions = dimension_order::nhd;
  static constexpr auto storage = storage_order::block_major;
};

static_assert(memory_layout<nhd_block_major>);

}  // namespace pagedkv
