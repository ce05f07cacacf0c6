#pragma once

#include <pagedkv/policy/layout/parts/pieces.hpp>

namespace pagedkv {

/// K in pieces of 16 bytes, [block][head][dim / x][token][x] with x numbers in 16 bytes, and V in pieces of 16 bytes of
/// neighbouring tokens: [block][head][token / x][dim][x] (docs/layouts.md). One layer's blocks lie together.
struct shuffled_layer_major : shuffled_pieces {
  static constexpr auto storage = storage_order::layer_major;
};

static_assert(memory_layout<shuffled_layer_major>);

}  // namespace pagedkv
