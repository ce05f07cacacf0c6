#pragma once

#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/layout/concept.hpp>

#include <numeric>

// The orders of other engines' kernels; docs/layouts.md has the sources. One head's numbers lie together in each.

namespace pagedkv {

/// K as [head][dim / x][token][x].
struct split_keys {
  [[nodiscard]] static constexpr piece_order keys(const block_shape& shape) noexcept {
    const auto x = std::int64_t{shape.numbers_in_16_bytes};
    return {.piece = shape.numbers_in_16_bytes,
            .holds_tokens = false,
            .head_stride = std::int64_t{shape.block_size} * shape.head_dim,
            .token_stride = x,
            .dim_stride = shape.block_size * x};
  }
};

/// V as [head][dim][token]. Pieces of any size that divides a block describe it; the largest are the fastest.
struct transposed_pieces : split_keys {
  [[nodiscard]] static constexpr piece_order values(const block_shape& shape) noexcept {
    const auto piece = std::gcd(shape.numbers_in_16_bytes, shape.block_size);
    return {.piece = piece,
            .holds_tokens = true,
            .head_stride = std::int64_t{shape.block_size} * shape.head_dim,
            .token_stride = piece,
            .dim_stride = shape.block_size};
  }
};

/// V as [head][token / x][dim][x].
struct shuffled_pieces : split_keys {
  [[nodiscard]] static constexpr piece_order values(const block_shape& shape) noexcept {
    const auto x = std::int64_t{shape.numbers_in_16_bytes};
    return {.piece = shape.numbers_in_16_bytes,
            .holds_tokens = true,
            .head_stride = std::int64_t{shape.block_size} * shape.head_dim,
            .token_stride = shape.head_dim * x,
            .dim_stride = x};
  }
};

/// One token's heads lie together, and one layer's blocks do.
struct nhd_layer_major {
  static constexpr auto dimensions = dimension_order::nhd;
  static constexpr auto storage = storage_order::layer_major;
};

static_assert(memory_layout<nhd_layer_major>);

/// One token's heads lie together, and so do all layers of one block: one run for each transfer of a block.
struct nhd_block_major {
  static constexpr auto dimensions = dimension_order::nhd;
  static constexpr auto storage = storage_order::block_major;
};

static_assert(memory_layout<nhd_block_major>);

/// One head's tokens lie together, and one layer's blocks do.
struct hnd_layer_major {
  static constexpr auto dimensions = dimension_order::hnd;
  static constexpr auto storage = storage_order::layer_major;
};

static_assert(memory_layout<hnd_layer_major>);

/// One head's tokens lie together, and so do all layers of one block: one run for each transfer of a block.
struct hnd_block_major {
  static constexpr auto dimensions = dimension_order::hnd;
  static constexpr auto storage = storage_order::block_major;
};

static_assert(memory_layout<hnd_block_major>);

/// K in pieces of 16 bytes, [block][head][dim / x][token][x] with x numbers in 16 bytes, and V transposed:
/// [block][head][dim][token] (docs/layouts.md). One layer's blocks lie together.
struct transposed_layer_major : transposed_pieces {
  static constexpr auto storage = storage_order::layer_major;
};

static_assert(memory_layout<transposed_layer_major>);

/// K in pieces of 16 bytes, [block][head][dim / x][token][x] with x numbers in 16 bytes, and V transposed:
/// [block][head][dim][token] (docs/layouts.md). All layers of one block lie together: one run for each transfer of a
/// block.
struct transposed_block_major : transposed_pieces {
  static constexpr auto storage = storage_order::block_major;
};

static_assert(memory_layout<transposed_block_major>);

/// K in pieces of 16 bytes, [block][head][dim / x][token][x] with x numbers in 16 bytes, and V in pieces of 16 bytes of
/// neighbouring tokens: [block][head][token / x][dim][x] (docs/layouts.md). One layer's blocks lie together.
struct shuffled_layer_major : shuffled_pieces {
  static constexpr auto storage = storage_order::layer_major;
};

static_assert(memory_layout<shuffled_layer_major>);

/// K in pieces of 16 bytes, [block][head][dim / x][token][x] with x numbers in 16 bytes, and V in pieces of 16 bytes of
/// neighbouring tokens: [block][head][token / x][dim][x] (docs/layouts.md). All layers of one block lie together: one
/// run for each transfer of a block.
struct shuffled_block_major : shuffled_pieces {
  static constexpr auto storage = storage_order::block_major;
};

static_assert(memory_layout<shuffled_block_major>);

/// Every layout, once: for programs whose users choose one, and for what runs over all of them.
using all_layouts =
    policy_list<nhd_layer_major, nhd_block_major, hnd_layer_major, hnd_block_major, transposed_layer_major,
                transposed_block_major, shuffled_layer_major, shuffled_block_major>;

/// The layouts in which a row is contiguous: those of any sizes, and those that attention reads.
using strided_layouts = policy_list<nhd_layer_major, nhd_block_major, hnd_layer_major, hnd_block_major>;

/// The layouts of other engines' kernels. They need sizes that whole pieces of 16 bytes fill.
using piecewise_layouts =
    policy_list<transposed_layer_major, transposed_block_major, shuffled_layer_major, shuffled_block_major>;

}  // namespace pagedkv
