#pragma once

#include <pagedkv/core/checked.hpp>
#include <pagedkv/core/config.hpp>
#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/layout/concept.hpp>
#include <pagedkv/storage/view.hpp>

#include <limits>

namespace pagedkv {

/// The sizes of an element for layout arithmetic.
struct element_size {
  std::int64_t bytes = 0;        // of one stored number
  std::int64_t scale_bytes = 0;  // of what lies beside the numbers of a token and head, such as its scale; or 0
  bool static_scales = false;    // the engine gives scales,
  bool scale_per_head = false;   // one for each KV head
  packed_token packed = {};      // of an element that packs tokens
};

template <element E>
inline constexpr auto size_of_element = [] {
  auto size = element_size{sizeof(typename E::storage), E::scaled ? std::int64_t{sizeof(float)} : 0};
  if constexpr (has_static_scales<E>) {
    size.static_scales = true;
    size.scale_per_head = E::scale_type::per_head;
  }
  if constexpr (packs_tokens<E>) {
    size.packed = E::packed;
    size.scale_bytes = E::packed.bytes - E::packed.key_dim();
  }
  return size;
}();

/// One layer of one block starts at a multiple of this many bytes.
inline constexpr std::int64_t block_alignment = 256;

/// A view with every stride filled in and no memory behind it, and the bytes that it needs.
struct storage_plan {
  block_storage_view view;
  std::int64_t bytes = 0;
};

namespace detail {

/// Whether whole pieces fill the axis along which they lie.
[[nodiscard]] inline result<void> check_pieces(const block_shape& shape, const piece_order& order) noexcept {
  const auto size = order.holds_tokens ? shape.block_size : shape.head_dim;
  if (size % order.piece != 0) {
    return error{error_code::invalid_argument,
                 order.holds_tokens
                     ? "cache_config.block_size, which this layout needs as a multiple of the limit,"
                     : "cache_config.head_dim or group_config.key_dim, which this layout needs as a multiple of the limit,",
                 size, order.piece};
  }
  return {};
}

/// Whether an element that packs tokens fits the group.
[[nodiscard]] inline result<void> check_packed(const group_config& group, const packed_token& packed) noexcept {
  if (group.kind != group_kind::latent) {
    return error{error_code::invalid_argument, "group_config.kind, of which this element stores latent vectors only,",
                 static_cast<std::int64_t>(group.kind), static_cast<std::int64_t>(group_kind::latent)};
  }
  if (group.key_dim != packed.key_dim()) {
    return error{error_code::invalid_argument, "group_config.key_dim, which is not this element's,", group.key_dim,
                 packed.key_dim()};
  }
  if (group.value_dim != packed.latent_dim) {
    return error{error_code::invalid_argument, "group_config.value_dim, which is not this element's,", group.value_dim,
                 packed.latent_dim};
  }
  return {};
}

/// Fills in where packed tokens lie, one behind the other, and the first of their scales.
inline void order_tokens(const packed_token& packed, block_storage_view& view) noexcept {
  view.token_stride = view.head_stride = packed.bytes;
  view.value_token_stride = view.value_head_stride = packed.bytes;
  view.key_scale_offset = view.value_scale_offset = packed.scale_offset;
  view.scale_token_stride = view.scale_head_stride = packed.bytes / std::int64_t{sizeof(float)};
}

/// Fills in where numbers and scales lie inside one layer of one block.
template <strided_layout Layout>
[[nodiscard]] result<void> order_numbers(const group_config& group, element_size element,
                                         block_storage_view& view) noexcept {
  const bool latent = group.kind == group_kind::latent;
  const bool token_first = Layout::dimensions == dimension_order::nhd;
  view.scale_token_stride = token_first ? group.num_kv_heads : 1;
  view.scale_head_stride = token_first ? 1 : view.block_size;
  view.token_stride = view.scale_token_stride * group.key_dim;
  view.head_stride = view.scale_head_stride * group.key_dim;
  if (latent || group.value_dim != group.key_dim) {
    const auto row = latent ? group.key_dim : group.value_dim;
    view.value_dim = group.value_dim;
    view.value_token_stride = view.scale_token_stride * row;
    view.value_head_stride = view.scale_head_stride * row;
  }
  if (element.packed.bytes != 0) {
    if (const auto fits = check_packed(group, element.packed); !fits) {
      return fits;
    }
    order_tokens(element.packed, view);
  }
  return {};
}

template <piecewise_layout Layout>
[[nodiscard]] result<void> order_numbers(const group_config& group, element_size element,
                                         block_storage_view& view) noexcept {
  if (group.kind == group_kind::latent) {
    return error{error_code::invalid_argument,
                 "group_config.num_layers of latent vectors, one for K and V, which only nhd and hnd lay out,",
                 group.num_layers, 0};
  }
  if (group.value_dim != group.key_dim) {
    return error{error_code::invalid_argument, "group_config.value_dim, unlike keys, which only nhd and hnd lay out,",
                 group.value_dim, group.key_dim};
  }
  if (element.bytes < 1 || 16 % element.bytes != 0) {
    return error{error_code::invalid_argument, "bytes of an element, of which 16 bytes hold no whole number,",
                 element.bytes};
  }
  const auto shape = block_shape{view.block_size, group.num_kv_heads, group.key_dim,
                                 static_cast<std::int32_t>(16 / element.bytes)};
  view.key_pieces = Layout::keys(shape);
  view.value_pieces = Layout::values(shape);
  view.scale_token_stride = 1;
  view.scale_head_stride = view.block_size;
  const auto keys_fit = check_pieces(shape, view.key_pieces);
  return keys_fit ? check_pieces(shape, view.value_pieces) : keys_fit;
}

/// Fills in where the scales lie that the engine gives.
[[nodiscard]] inline result<void> place_static_scales(const group_config& group, element_size element,
                                                      block_storage_view& view) noexcept {
  if (!element.static_scales) {
    return group.scales == nullptr ? result<void>{}
                                   : error{error_code::invalid_argument,
                                           "scales in the configuration, which this element does not read,", 1, 0};
  }
  const auto each = element.scale_per_head ? group.num_kv_heads : 1;
  const auto vectors = group.kind == group_kind::latent ? 1 : 2;
  auto size = checked_size{};
  const auto count = size.multiply(size.multiply(group.num_layers, each), vectors);
  constexpr auto most = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  if (count > most) {
    return error{error_code::size_overflow, "number of static scales in all layers", count, most};
  }
  view.static_scales = group.scales;
  view.static_head_stride = element.scale_per_head ? 1 : 0;
  view.static_layer_stride = vectors * each;
  view.static_value_offset = (vectors - 1) * each;
  return {};
}

/// Lays out the layers of one group that holds tokens.
template <memory_layout Layout>
[[nodiscard]] result<storage_plan> plan_layers(const group_config& group, std::int32_t block_size,
                                               std::int32_t num_blocks, element_size element,
                                               std::int64_t granule) noexcept {
  const bool latent = group.kind == group_kind::latent;
  auto plan = storage_plan{};
  auto& view = plan.view;
  view.num_blocks = num_blocks;
  view.num_layers = group.num_layers;
  view.block_size = block_size;
  view.num_kv_heads = group.num_kv_heads;
  view.head_dim = group.key_dim;

  auto size = checked_size{};
  const auto rows = size.multiply(block_size, group.num_kv_heads);
  const auto keys = size.multiply(size.multiply(rows, group.key_dim), element.bytes);
  const auto values = latent ? 0 : size.multiply(size.multiply(rows, group.value_dim), element.bytes);
  const auto scales = size.multiply(rows, element.scale_bytes);
  const auto scale_start = size.round_up(size.add(keys, values), alignof(float));
  const auto all_scales = size.multiply(scales, latent ? 1 : 2);
  const auto layer_bytes = size.round_up(size.add(scale_start, all_scales), block_alignment);
  const bool layer_first = Layout::storage == storage_order::layer_major;
  const auto num_regions = layer_first ? group.num_layers : 1;
  const auto block_bytes = layer_first ? layer_bytes : size.multiply(layer_bytes, group.num_layers);
  const auto region_bytes = size.round_up(size.multiply(block_bytes, num_blocks), granule);
  plan.bytes = size.multiply(region_bytes, num_regions);
  if (size.overflowed()) {
    return error{error_code::size_overflow, "number of blocks whose bytes 63 bits do not count", num_blocks};
  }

  view.value_offset = latent ? 0 : keys;
  view.key_scale_offset = scales == 0 ? 0 : scale_start;
  view.value_scale_offset = scales == 0 || latent ? view.key_scale_offset : scale_start + scales;
  if (const auto ordered = order_numbers<Layout>(group, element, view); !ordered) {
    return ordered.error();
  }
  if (const auto placed = place_static_scales(group, element, view); !placed) {
    return placed.error();
  }
  view.block_stride = block_bytes;
  view.layer_stride = layer_first ? region_bytes : layer_bytes;
  return plan;
}

}  // namespace detail

/// Lays out block storage of one kind of layers for the capacity of a configuration. Regions whose ends move when the
/// number of blocks changes, one per layer or one for all, start at multiples of a granule of memory. Errors:
/// `invalid_argument` for a configuration with groups, for sizes that the pieces of a piecewise layout do not fill, and
/// for scales that the element does not read; `size_overflow` when a product exceeds 63 bits.
template <memory_layout Layout>
[[nodiscard]] result<storage_plan> plan_storage(const cache_config& config, element_size element,
                                                std::int64_t granule = 1) noexcept {
  if (!config.groups.empty()) {
    return error{error_code::invalid_argument, "number of cache_config.groups, which are for the policy layer_groups,",
                 static_cast<std::int64_t>(config.groups.size()), 0};
  }
  auto group = group_config{};
  group.num_layers = config.num_layers;
  group.num_kv_heads = config.num_kv_heads;
  group.key_dim = group.value_dim = config.head_dim;
  group.scales = config.scales;
  return detail::plan_layers<Layout>(group, config.block_size, config.capacity(), element, granule);
}

/// The plan for one group with blocks of its own. Errors: those of `validate`; `invalid_argument` for states, which
/// hold no tokens, and for sizes below one.
template <memory_layout Layout>
[[nodiscard]] result<storage_plan> plan_storage(const group_config& group, std::int32_t block_size,
                                                std::int32_t num_blocks, element_size element,
                                                std::int64_t granule = 1) noexcept {
  if (const auto valid = validate(group); !valid) {
    return valid.error();
  }
  if (!group.holds_tokens()) {
    return error{error_code::invalid_argument, "group_config.kind, which holds no tokens,",
                 static_cast<std::int64_t>(group.kind)};
  }
  if (block_size < 1) {
    return error{error_code::invalid_argument, "block_size of the storage", block_size, 1};
  }
  if (num_blocks < 1) {
    return error{error_code::invalid_argument, "num_blocks of the storage", num_blocks, 1};
  }
  return detail::plan_layers<Layout>(group, block_size, num_blocks, element, granule);
}

}  // namespace pagedkv
