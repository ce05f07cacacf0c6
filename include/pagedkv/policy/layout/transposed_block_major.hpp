#pragma once

#include <pagedkv/policy/layout/parts/pieces.hpp>

namespace pagedkv {

/// K in pieces of 16 bytes, [block][head][dim / x][token][x] with x numbers in 16 bytes, and V transposed:
/// [block][head][dim][token] (docs/layouts.md). All layers of one block lie together: one run for each transfer of a
/// block.
struct transposed_block_major : transposed_pieces {
  static constexpr auto storage = storage_order::block_major;
};

static_assert(memory_layout<transposed_block_major>);

}  // namespace pagedkv
