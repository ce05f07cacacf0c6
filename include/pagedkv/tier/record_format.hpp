#pragma once

#include <pagedkv/core/group_config.hpp>
#include <pagedkv/core/piece_order.hpp>
#include <pagedkv/storage/memory_plan.hpp>
#include <pagedkv/storage/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace pagedkv {

/// Records begin at multiples of this many bytes, in memory and in files, and are whole multiples of it long.
inline constexpr auto record_alignment = std::size_t{4096};

/// The shape of one cache's records: one block each, a header and then its bytes, one layer after the other. Records of
/// different formats are never exchanged: `text` says everything about the bytes that writer and reader must agree on,
/// and each record carries it.
struct record_format {
  std::string text;
  std::int64_t layer_bytes = 0;
  std::int32_t num_layers = 0;
  std::int32_t block_size = 0;       // tokens of the largest block
  std::int32_t hit_granularity = 0;  // every block holds a multiple of so many tokens; 0: as many as the largest

  /// Bytes of the header, with room for a key at every second token at least.
  [[nodiscard]] std::size_t header_bytes() const noexcept {
    const auto filled = fixed_bytes + text.size() + static_cast<std::size_t>(block_size) * bytes_per_token;
    return (filled + record_alignment - 1) / record_alignment * record_alignment;
  }
  [[nodiscard]] std::size_t payload_bytes() const noexcept {
    return static_cast<std::size_t>(layer_bytes) * static_cast<std::size_t>(num_layers);
  }
  [[nodiscard]] std::size_t record_bytes() const noexcept {
    return header_bytes() + (payload_bytes() + record_alignment - 1) / record_alignment * record_alignment;
  }

  /// Whether a block may hold so many tokens.
  [[nodiscard]] bool may_hold(std::size_t num_tokens) const noexcept {
    const auto most = static_cast<std::size_t>(block_size);
    return hit_granularity == 0 ? num_tokens == most
                                : num_tokens <= most && num_tokens % static_cast<std::size_t>(hit_granularity) == 0;
  }

  /// The device's storage, with blocks in records that lie one after the other from `records` on.
  [[nodiscard]] block_storage_view payloads(const block_storage_view& device, std::byte* records,
                                            std::int32_t num_records) const noexcept {
    auto view = device;
    view.base = records + header_bytes();
    view.block_stride = static_cast<std::int64_t>(record_bytes());
    view.layer_stride = layer_bytes;
    view.num_blocks = num_records;
    return view;
  }

 private:
  static constexpr auto fixed_bytes = std::size_t{256};
  static constexpr auto bytes_per_token = std::size_t{16};  // 4 of the token, 12 of half a key
};

/// The format of the records of one storage, whose element has this name. Throws `std::bad_alloc`. `model`: the
/// engine's name for the weights that computed the K/V; caches of different weights, or static scales, must differ in it.
[[nodiscard]] inline record_format make_record_format(const block_storage_view& of, std::string_view element,
                                                      std::string_view model) {
  auto text = std::string{"pagedkv record 3"};
  const auto add = [&](std::string_view name, std::int64_t value) {
    text.append(" ").append(name).append("=").append(std::to_string(value));
  };
  const auto add_pieces = [&](const piece_order& order) {
    for (const auto number : {std::int64_t{order.piece}, std::int64_t{order.holds_tokens}, order.head_stride,
                              order.token_stride, order.dim_stride}) {
      text.append(",").append(std::to_string(number));
    }
  };
  add("block_size", of.block_size);
  add("layers", of.num_layers);
  add("heads", of.num_kv_heads);
  add("head_dim", of.head_dim);
  add("value_dim", of.dim_of_values());
  add("layer_bytes", of.layer_bytes());
  add("value", of.value_offset);
  add("key_scales", of.key_scale_offset);
  add("value_scales", of.value_scale_offset);
  add("token", of.token_stride);
  add("head", of.head_stride);
  add("value_token", of.value_token_stride);
  add("value_head", of.value_head_stride);
  add("scale_token", of.scale_token_stride);
  add("scale_head", of.scale_head_stride);
  text.append(" pieces");
  add_pieces(of.key_pieces);
  add_pieces(of.value_pieces);
  text.append(" element=").append(element).append(" model=").append(model);
  return {std::move(text), of.layer_bytes(), of.num_layers, of.block_size};
}

/// The format of the records of a cache with groups, whose blocks are all of one size. `view_of(g)`: the storage of a
/// group that holds tokens.
template <class ViewOf>
[[nodiscard]] record_format make_record_format(const group_list& groups, const memory_plan& plan, ViewOf&& view_of,
                                               std::string_view element, std::string_view model) {
  auto text = std::string{"pagedkv groups 2"};
  const auto add = [&](std::int64_t number) { text.append(" ").append(std::to_string(number)); };
  add(plan.block_bytes);
  add(plan.hit_granularity);
  auto largest = plan.hit_granularity;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& [block_size, parts_per_block, blocks_per_state, part_bytes] = plan.groups[g];
    const auto& group = groups[g];
    largest = std::max(largest, block_size);
    text.append(" group");
    for (const auto number :
         {static_cast<std::int64_t>(group.kind), std::int64_t{group.num_layers}, std::int64_t{group.num_kv_heads},
          group.window, std::int64_t{group.num_sinks}, group.state_bytes, std::int64_t{block_size},
          std::int64_t{parts_per_block}, std::int64_t{blocks_per_state}, part_bytes}) {
      add(number);
    }
    if (group.holds_tokens()) {
      text.append(": ").append(make_record_format(view_of(g), element, "").text);
    }
  }
  text.append(" element=").append(element).append(" model=").append(model);
  return {std::move(text), plan.block_bytes, 1, largest, plan.hit_granularity};
}

}  // namespace pagedkv
