#pragma once

#include <pagedkv/core/host_device.hpp>

#include <cstdint>

// Facts of how numbers are stored which kernels and host share: packed tokens, orders of pieces, scales.

namespace pagedkv {

/// The bytes of a token that holds numbers of two kinds: `latent_dim` quantised numbers of a byte each, the float32
/// scales of their parts, and `rotated_dim` wider numbers.
struct packed_token {
  std::int32_t latent_dim = 0;      // quantised numbers
  std::int32_t part_dim = 0;        // neighbouring quantised numbers that share a scale
  std::int32_t rotated_dim = 0;     // wider numbers
  std::int32_t scale_offset = 0;    // bytes to the scales
  std::int32_t rotated_offset = 0;  // bytes to the wider numbers
  std::int32_t bytes = 0;

  /// All numbers of a token.
  [[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::int32_t key_dim() const noexcept { return latent_dim + rotated_dim; }
  /// Its scales.
  [[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::int32_t num_parts() const noexcept { return latent_dim / part_dim; }
};

/// Whether an element stores whole tokens of such numbers, as `float8_latent` does.
template <class Element>
inline constexpr bool packs_tokens = requires { Element::packed.key_dim(); };

/// Where a number of K, or of V, lies in one layer of one block, when the numbers of one token and head are not
/// neighbours. Neighbouring numbers along one axis lie together in pieces. All members count numbers.
struct piece_order {
  std::int32_t piece = 0;         // in a piece: a power of two that divides the axis
  bool holds_tokens = false;      // a piece is one dimension of neighbouring tokens; else neighbours of one token
  std::int64_t head_stride = 0;   // from a KV head to the next
  std::int64_t token_stride = 0;  // from a token to the next; where pieces hold tokens, from a piece to the next
  std::int64_t dim_stride = 0;    // from a dimension to the next; where pieces hold dimensions, from a piece to the next

  /// `offset` is the token's, within the block.
  [[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::int64_t index(std::int32_t offset, std::int32_t head,
                                                                 std::int32_t dim) const noexcept {
    return holds_tokens ? head * head_stride + offset / piece * token_stride + dim * dim_stride + offset % piece
                        : head * head_stride + offset * token_stride + dim / piece * dim_stride + dim % piece;
  }

  friend bool operator==(const piece_order&, const piece_order&) = default;
};

/// All keys of a layer share a scale, and so do all values. The engine gives them, see `cache_config::scales`.
struct tensor_scale {
  static constexpr bool in_block = false;
  static constexpr bool per_head = false;
};

/// The keys of a layer's KV head share a scale, and so do its values. The engine gives them.
struct head_scale {
  static constexpr bool in_block = false;
  static constexpr bool per_head = true;
};

/// The numbers of one token and KV head share a scale. Appending computes it, and it lies in the block.
struct token_scale {
  static constexpr bool in_block = true;
};

/// Whether the engine gives an element's scales: static ones.
template <class Element>
inline constexpr bool has_static_scales = requires { requires !Element::scale_type::in_block; };

/// Whether a number is its stored bits alone. Rows in the caller's memory have such elements.
template <class Element>
inline constexpr bool is_unscaled = !Element::scaled && !has_static_scales<Element>;

}  // namespace pagedkv
