#pragma once

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

}  // namespace pagedkv
