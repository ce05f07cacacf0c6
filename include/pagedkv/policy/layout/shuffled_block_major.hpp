#pragma once

#include <pagedkv/policy/layout/parts/pieces.hpp>

namespace pagedkv {

/// K in pieces of 16 bytes, [block][head][dim / x][token][x] with x numbers in 16 bytes, and V in pieces of 16 bytes of
/// neighbouring tokens: [block][head][token / x][dim][x] (docs/layouts.md). All layers of one block lie together: one
/// run for each transfer of a block.
struct shuffled_block_major : shuffled_pieces {
  static constexpr auto storage = storage_order::block_major;
};

static_assert(memory_layout<shuffled_block_major>);

}  // namespace pagedkv
