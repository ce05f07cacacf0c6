#pragma once

#include <pagedkv/policy/layout/parts/pieces.hpp>

namespace pagedkv {

/// K in pieces of 16 bytes, [block][head][dim / x][token][x] with x numbers in 16 bytes, and V transposed:
/// [block][head][dim][token] (docs/layouts.md). All layers of one block lie together: one run for each transfer of a
/// block.
struct transposed_block_major : split_keys {
  static constexpr auto storage = storage_order::block_major;

  [[nodiscard]] static constexpr piece_order values(const block_shape& shape) noexcept {
    return transposed_values(shape);
  }
};

static_assert(memory_layout<transposed_block_major>);

}  // namespace pagedkv
