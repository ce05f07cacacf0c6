#pragma once

#include <pagedkv/core/checked.hpp>
#include <pagedkv/core/config.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/layout/concept.hpp>
#include <pagedkv/storage/view.hpp>

namespace pagedkv {

/// The sizes of an element for layout arithmetic.
struct element_size {
  std::int64_t bytes = 0;        // of one stored number
  std::int64_t scale_bytes = 0;  // of one scale per token and head; 0 for elements without
};

template <element E>
inline constexpr auto size_of_element =
    element_size{sizeof(typename E::storage), E::scaled ? std::int64_t{sizeof(float)} : 0};

/// One layer of one block starts at a multiple of this many bytes.
inline constexpr std::int64_t block_alignment = 256;

/// A view with every stride filled in and no memory behind it, and the bytes that it needs.
struct storage_plan {
  block_storage_view view;
  std::int64_t bytes = 0;
};

/// Lays out block storage of one kind of layers for the capacity of a configuration. Regions whose ends move when the number
/// of blocks changes, one per layer or one for all, start at multiples of a granule of memory. Errors: `invalid_argument`
/// for a configuration with groups; `size_overflow` when a product exceeds 63 bits.
template <memory_layout Layout>
[[nodiscard]] result<storage_plan> plan_storage(const cache_config& config, element_size element,
                                                std::int64_t granule = 1) noexcept {
  if (!config.groups.empty()) {
    return error{error_code::invalid_argument, "number of cache_config.groups in storage without groups",
                 static_cast<std::int64_t>(config.groups.size()), 0};
  }
  auto plan = storage_plan{};
  auto& view = plan.view;
  view.num_blocks = config.capacity();
  view.num_layers = config.num_layers;
  view.block_size = config.block_size;
  view.num_kv_heads = config.num_kv_heads;
  view.head_dim = config.head_dim;

  auto size = checked_size{};
  const auto rows = size.multiply(config.block_size, config.num_kv_heads);
  const auto payload = size.multiply(size.multiply(rows, config.head_dim), element.bytes);
  const auto scales = size.multiply(rows, element.scale_bytes);
  const auto scale_start = size.round_up(size.multiply(payload, 2), alignof(float));
  const auto layer_bytes = size.round_up(size.add(scale_start, size.multiply(scales, 2)), block_alignment);
  const bool layer_first = Layout::storage == storage_order::layer_major;
  const auto num_regions = layer_first ? config.num_layers : 1;
  const auto block_bytes = layer_first ? layer_bytes : size.multiply(layer_bytes, config.num_layers);
  const auto region_bytes = size.round_up(size.multiply(block_bytes, view.num_blocks), granule);
  plan.bytes = size.multiply(region_bytes, num_regions);
  if (size.overflowed()) {
    return error{error_code::size_overflow, "bytes of block storage for cache_config.num_blocks", view.num_blocks};
  }

  view.value_offset = payload;
  view.key_scale_offset = scales == 0 ? 0 : scale_start;
  view.value_scale_offset = scales == 0 ? 0 : scale_start + scales;
  const bool token_first = Layout::dimensions == dimension_order::nhd;
  view.scale_token_stride = token_first ? config.num_kv_heads : 1;
  view.scale_head_stride = token_first ? 1 : config.block_size;
  view.token_stride = view.scale_token_stride * config.head_dim;
  view.head_stride = view.scale_head_stride * config.head_dim;
  view.block_stride = block_bytes;
  view.layer_stride = layer_first ? region_bytes : layer_bytes;
  return plan;
}

}  // namespace pagedkv
