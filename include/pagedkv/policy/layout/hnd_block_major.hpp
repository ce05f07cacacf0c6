#pragma once

#include <pagedkv/policy/layout/concept.hpp>

namespace pagedkv {

/// One head's tokens lie together, and so do all layers of one block: one run for each transfer of a block.
struct hnd_block_major {
  static constexpr auto dimensions = dimension_order::hnd;
  static constexpr auto storage = storage_order::block_major;
};

static_assert(memory_layout<hnd_block_major>);

}  // namespace pagedkv
