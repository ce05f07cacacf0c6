#pragma once

#include <pagedkv/policy/layout/parts/pieces.hpp>

namespace pagedkv {

/// K in pieces of 16 bytes, [block][head][dim / x][token][x] with x numbers in 16 bytes, and V transposed:
/// [block][head][dim][token] (docs/layouts.md). One layer's blocks lie together.
struct transposed_layer_major : transposed_pieces {
  static constexpr auto storage = storage_order::layer_major;
};

static_assert(memory_layout<transposed_layer_major>);

}  // namespace pagedkv
