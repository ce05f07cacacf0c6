#pragma once

#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/policy/axis.hpp>

#include <concepts>
#include <cstdint>

namespace pagedkv {

/// Order of the dimensions inside one layer of one block.
enum class dimension_order : std::uint8_t {
  nhd,  // token, head, dim
  hnd,  // head, token, dim
};

/// Order of layers and blocks across the storage.
enum class storage_order : std::uint8_t {
  layer_major,  // [layer][block]: one layer's blocks lie together
  block_major,  // [block][layer]: one block is one run, for transfers
};

/// The sizes of one layer of one block.
struct block_shape {
  std::int32_t block_size = 0;  // tokens
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t numbers_in_16_bytes = 0;
};

namespace detail {

template <class L>
concept has_dimensions = requires {
  { L::dimensions } -> std::convertible_to<dimension_order>;
};
template <class L>
concept has_keys = requires(const block_shape& shape) {
  { L::keys(shape) } noexcept -> std::same_as<piece_order>;
};
template <class L>
concept has_values = requires(const block_shape& shape) {
  { L::values(shape) } noexcept -> std::same_as<piece_order>;
};

}  // namespace detail

/// A layout whose `storage` says in which order numbers are stored.
template <class L>
concept stored_in_order = requires {
  { L::storage } -> std::convertible_to<storage_order>;
};

/// A layout in which the numbers of one token and head are neighbours, and K and V have the same strides. Attention
/// reads only these.
template <class L>
concept strided_layout = stored_in_order<L> && detail::has_dimensions<L>;

/// A layout in which they are not. Its scales lie in the order head, token.
template <class L>
concept piecewise_layout = stored_in_order<L> && detail::has_keys<L> && detail::has_values<L>;

/// Where a number lies in block storage.
///
/// | requirement                   | meaning                                                                   |
/// |-------------------------------|---------------------------------------------------------------------------|
/// | `L::storage`                  | the `storage_order` of layers and blocks                                  |
///
/// and one of two:
///
/// | requirement                   | meaning                                                                   |
/// |-------------------------------|---------------------------------------------------------------------------|
/// | `L::dimensions`               | the `dimension_order` of keys and values inside one layer of one block    |
/// | `L::keys(s)`, `L::values(s)`  | the `piece_order` of keys, and of values, in a block of this `block_shape`: |
/// |                               | each fills its half of the block exactly                                  |
///
/// A minimal model:
///
///     struct own_layout {
///       static constexpr auto dimensions = dimension_order::nhd;
///       static constexpr auto storage = storage_order::layer_major;
///     };
template <class L>
concept memory_layout = strided_layout<L> != piecewise_layout<L>;

struct layout_axis {
  template <class Policy>
  static constexpr bool takes = memory_layout<Policy>;

  template <class Defaults, class...>
  using default_policy = typename Defaults::layout_type;

  template <bool Is>
  struct at_most_one {
    static_assert(Is, "two layouts are given, and a cache has one: leave the other out");
  };

  template <class Policy>
  static constexpr bool resembles = stored_in_order<Policy> || requires { Policy::dimensions; } ||
                                    requires { &Policy::keys; } || requires { &Policy::values; };

  template <class Policy>
  struct lacks {
    static constexpr auto unmet = detail::first_unmet(
        {stored_in_order<Policy>,
         detail::has_dimensions<Policy> || detail::has_keys<Policy> || detail::has_values<Policy>,
         detail::has_dimensions<Policy> || detail::has_keys<Policy>,
         detail::has_dimensions<Policy> || detail::has_values<Policy>,
         !strided_layout<Policy> || !piecewise_layout<Policy>});
    static_assert(unmet != 0,
                  "this type is nearly a layout: `storage` is missing or has another type; write `static constexpr "
                  "auto storage = storage_order::layer_major`");
    static_assert(unmet != 1,
                  "this type is nearly a layout: it does not say where numbers lie in a block; write `static "
                  "constexpr auto dimensions = dimension_order::nhd`, or `keys` and `values`");
    static_assert(unmet != 2,
                  "this type is nearly a layout: `keys` is missing, may throw or has another form; write `static "
                  "piece_order keys(const block_shape& shape) noexcept`");
    static_assert(unmet != 3,
                  "this type is nearly a layout: `values` is missing, may throw or has another form; write `static "
                  "piece_order values(const block_shape& shape) noexcept`");
    static_assert(unmet != 4,
                  "this type is nearly a layout: it has `dimensions` beside `keys` and `values`; leave `dimensions` "
                  "out, or the other two");
  };
};

}  // namespace pagedkv
