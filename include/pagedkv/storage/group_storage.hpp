#pragma once

#include <pagedkv/core/config.hpp>
#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/layout/concept.hpp>
#include <pagedkv/storage/memory_plan.hpp>
#include <pagedkv/storage/view.hpp>

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace pagedkv {

/// Views of one group's layers in blocks that all groups share: one base, the group's own strides. Where K and V have one
/// size, `keys` addresses both, and kernels take it alone. Otherwise each view has the rows of its own part, as keys and
/// as values. A latent group's V are the first numbers of its K.
struct group_view {
  block_storage_view keys;
  block_storage_view values;

  [[nodiscard]] bool rows_alike() const noexcept { return keys.value_offset != 0; }
};

/// The view of a group, without memory behind it. Blocks follow each other, with all layers of a block in one run,
/// whatever order of layers the layout names.
template <strided_layout Layout>
[[nodiscard]] group_view plan_view(const group_config& group, const group_plan& plan, element_size element,
                                   std::int64_t block_bytes, std::int32_t num_blocks) noexcept {
  const bool token_first = Layout::dimensions == dimension_order::nhd;
  const bool latent = group.kind == group_kind::latent;
  const auto rows = std::int64_t{plan.block_size} * group.num_kv_heads;
  const auto key_bytes = rows * group.key_dim * element.bytes;
  const auto value_bytes = latent ? 0 : rows * group.value_dim * element.bytes;
  const auto numbers = checked_size{}.round_up(key_bytes + value_bytes, alignof(float));
  const auto scales = rows * element.scale_bytes;
  const auto describe = [&](std::int32_t dim) {
    auto view = block_storage_view{};
    view.num_blocks = num_blocks;
    view.num_layers = group.num_layers;
    view.block_size = plan.block_size;
    view.num_kv_heads = group.num_kv_heads;
    view.head_dim = dim;
    view.block_stride = block_bytes;
    view.layer_stride = plan.part_bytes;
    view.scale_token_stride = token_first ? group.num_kv_heads : 1;
    view.scale_head_stride = token_first ? 1 : plan.block_size;
    view.token_stride = view.scale_token_stride * dim;
    view.head_stride = view.scale_head_stride * dim;
    return view;
  };
  auto views = group_view{describe(group.key_dim), describe(group.value_dim)};
  if (scales != 0) {
    views.keys.key_scale_offset = views.keys.value_scale_offset = numbers;
  }
  if (latent) {
    // The same rows, of which V takes the first numbers.
    views.values.token_stride = views.keys.token_stride;
    views.values.head_stride = views.keys.head_stride;
    views.values.key_scale_offset = views.values.value_scale_offset = views.keys.key_scale_offset;
    return views;
  }
  if (scales != 0) {
    views.values.key_scale_offset = views.values.value_scale_offset = numbers + scales - key_bytes;
  }
  if (group.key_dim == group.value_dim) {
    views.keys.value_offset = key_bytes;
    views.keys.value_scale_offset = scales == 0 ? 0 : numbers + scales;
  }
  return views;
}

/// Owns the memory of every block of a pool that several groups share. Not initialised. Moving keeps the address.
template <element Element, strided_layout Layout, allocator Allocator>
class group_storage {
 public:
  using element_type = Element;
  using layout_type = Layout;
  using allocator_type = Allocator;

  /// Errors: those of `validate` and `plan_memory`; `size_overflow` when the pool has more bytes than 63 bits count;
  /// `out_of_memory` with the requested bytes.
  [[nodiscard]] static result<group_storage> create(const cache_config& config, Allocator memory = Allocator{}) {
    if (const auto valid = validate(config); !valid) {
      return valid.error();
    }
    const auto plan = plan_memory(config.groups, size_of_element<Element>, config.block_size);
    if (!plan) {
      return plan.error();
    }
    auto size = checked_size{};
    const auto bytes = size.multiply(plan->block_bytes, config.num_blocks);
    if (size.overflowed()) {
      return error{error_code::size_overflow, "bytes of block storage for cache_config.num_blocks", config.num_blocks};
    }
    auto* const base = memory.allocate(static_cast<std::size_t>(bytes), block_alignment);
    if (base == nullptr) {
      return error{error_code::out_of_memory, "bytes of block storage", bytes};
    }
    return group_storage{std::move(memory), config, *plan, base};
  }

  group_storage(group_storage&& other) noexcept
      : memory_(std::move(other.memory_)),
        plan_(other.plan_),
        views_(other.views_),
        blocks_(std::exchange(other.blocks_, block_storage_view{})) {}
  group_storage& operator=(group_storage&&) = delete;
  ~group_storage() {
    if (blocks_.base != nullptr) {
      memory_.deallocate(blocks_.base, static_cast<std::size_t>(bytes()));
    }
  }

  [[nodiscard]] const memory_plan& plan() const noexcept { return plan_; }
  /// Of a group that holds tokens. Valid as long as the storage.
  [[nodiscard]] const group_view& view(std::size_t group) const noexcept { return views_[group]; }
  /// Whole blocks, as one layer each: to copy and to move them.
  [[nodiscard]] const block_storage_view& blocks() const noexcept { return blocks_; }
  [[nodiscard]] std::int64_t bytes() const noexcept { return blocks_.block_stride * blocks_.num_blocks; }

  /// One part of a state in the block that holds it. `part` counts within the block.
  [[nodiscard]] std::byte* state_part(std::size_t group, block_id block, std::int32_t part) const noexcept {
    assert(part < plan_.groups[group].parts_per_block && "a block of this group holds fewer parts");
    return blocks_.block(0, static_cast<std::int64_t>(block)) + part * plan_.groups[group].part_bytes;
  }

 private:
  group_storage(Allocator memory, const cache_config& config, const memory_plan& plan, std::byte* base) noexcept
      : memory_(std::move(memory)), plan_(plan) {
    blocks_.base = base;
    blocks_.block_stride = plan.block_bytes;
    blocks_.layer_stride = plan.block_bytes * config.num_blocks;
    blocks_.num_blocks = config.num_blocks;
    blocks_.num_layers = 1;
    for (std::size_t i = 0; i < config.groups.size(); ++i) {
      const auto& group = config.groups[i];
      if (!group.holds_tokens()) {
        continue;
      }
      views_[i] =
          plan_view<Layout>(group, plan.groups[i], size_of_element<Element>, plan.block_bytes, config.num_blocks);
      views_[i].keys.base = base;
      const auto value_start = views_[i].rows_alike() || group.kind == group_kind::latent
                                   ? std::int64_t{0}
                                   : std::int64_t{plan.groups[i].block_size} * group.num_kv_heads * group.key_dim *
                                         size_of_element<Element>.bytes;
      views_[i].values.base = base + value_start;
    }
  }

  [[no_unique_address]] Allocator memory_;
  memory_plan plan_;
  std::array<group_view, group_list::max_size> views_;
  block_storage_view blocks_;
};

}  // namespace pagedkv
