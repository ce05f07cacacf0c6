#pragma once

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

/// Where a number lies in block storage.
///
/// | requirement     | meaning                                                                         |
/// |-----------------|---------------------------------------------------------------------------------|
/// | `L::dimensions` | the `dimension_order` of keys and values inside one layer of one block          |
/// | `L::storage`    | the `storage_order` of layers and blocks                                        |
///
/// A minimal model:
///
///     struct own_layout {
///       static constexpr auto dimensions = dimension_order::nhd;
///       static constexpr auto storage = storage_order::layer_major;
///     };
template <class L>
concept memory_layout = requires {
  { L::dimensions } -> std::convertible_to<dimension_order>;
  { L::storage } -> std::convertible_to<storage_order>;
};

struct layout_axis {
  template <class Policy>
  static constexpr bool takes = memory_layout<Policy>;

  template <class Defaults, class...>
  using default_policy = typename Defaults::layout_type;

  template <bool Is>
  struct at_most_one {
    static_assert(Is, "two layouts are given, and a cache has one: leave the other out");
  };
};

}  // namespace pagedkv
