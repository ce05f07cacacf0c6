#pragma once

#include <pagedkv/core/config.hpp>
#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/layout/concept.hpp>
#include <pagedkv/storage/layout.hpp>
#include <pagedkv/storage/memory_plan.hpp>
#include <pagedkv/storage/view.hpp>

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace pagedkv {

/// Owns the memory of every block in every layer. Not initialised: a block is written before it is read, and padding is
/// never read as numbers. Moving the object keeps the address of the memory, so views stay valid.
///
/// There are addresses for the capacity of the configuration. With a `resizable_allocator`, memory is behind those of
/// the first blocks only: one range per layer if the layout is layer-major, each rounded up to whole granules,
/// otherwise one range. Other allocators provide memory for the capacity at once.
template <element Element, memory_layout Layout, allocator Allocator>
class block_storage {
 public:
  using element_type = Element;
  using layout_type = Layout;
  using allocator_type = Allocator;

  /// Errors: those of `validate` and `plan_storage`; `out_of_memory` with the requested bytes. Without memory (see
  /// `provides_memory`), an empty storage.
  [[nodiscard]] static result<block_storage> create(const cache_config& config, Allocator memory = Allocator{}) {
    if (const auto valid = validate(config); !valid) {
      return valid.error();
    }
    if constexpr (!provides_memory<Allocator>) {
      return block_storage{std::move(memory), storage_plan{}, 1};
    }
    auto granule = std::int64_t{1};
    if constexpr (resizable) {
      granule = static_cast<std::int64_t>(memory.granule());
    }
    auto plan = plan_storage<Layout>(config, size_of_element<Element>, granule);
    if (!plan) {
      return plan.error();
    }
    const auto bytes = static_cast<std::size_t>(plan->bytes);
    if constexpr (resizable) {
      plan->view.base = memory.reserve(bytes, block_alignment);
    } else {
      plan->view.base = memory.allocate(bytes, block_alignment);
    }
    if (plan->view.base == nullptr) {
      return error{error_code::out_of_memory, "bytes of block storage", plan->bytes};
    }
    auto made = block_storage{std::move(memory), *plan, granule};
    if (const auto mapped = made.resize(config.num_blocks); !mapped) {
      return mapped.error();
    }
    return made;
  }

  block_storage(block_storage&& other) noexcept
      : memory_(std::move(other.memory_)),
        plan_(std::exchange(other.plan_, storage_plan{})),
        granule_(other.granule_),
        num_blocks_(other.num_blocks_) {}

  block_storage& operator=(block_storage other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(plan_, other.plan_);
    std::swap(granule_, other.granule_);
    std::swap(num_blocks_, other.num_blocks_);
    return *this;
  }

  ~block_storage() {
    if (plan_.view.base != nullptr) {
      memory_.deallocate(plan_.view.base, static_cast<std::size_t>(plan_.bytes));
    }
  }

  /// Valid as long as the storage. After the storage was moved from: an empty view with a null base.
  [[nodiscard]] const block_storage_view& view() const noexcept { return plan_.view; }

  /// The view by which whole blocks are copied and moved.
  [[nodiscard]] const block_storage_view& blocks() const noexcept { return plan_.view; }

  /// Bytes that the first blocks take, scales, padding and the rest of the last granules included.
  [[nodiscard]] std::int64_t bytes_for(std::int32_t num_blocks) const noexcept {
    return resizable ? region_bytes(num_blocks) * num_regions() : plan_.bytes;
  }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_for(num_blocks_); }

  /// Provides memory for so many blocks, at most the capacity, and keeps the contents of those that stay. Blocks that
  /// go are not accessed any more, by the device neither. One call of the allocator per region. Errors: `out_of_memory`
  /// with the additional bytes; then nothing has changed. Shrinking never fails.
  [[nodiscard]] result<void> resize(std::int32_t num_blocks) noexcept {
    if constexpr (resizable) {
      const auto before = region_bytes(num_blocks_);
      const auto after = region_bytes(num_blocks);
      if (after > before && !map(before, after)) {
        return error{error_code::out_of_memory, "bytes of block storage", (after - before) * num_regions()};
      }
      if (after < before) {
        unmap(num_regions(), after, before);
      }
    }
    num_blocks_ = num_blocks;
    return {};
  }

 private:
  static constexpr bool resizable = resizable_allocator<Allocator>;

  block_storage(Allocator memory, const storage_plan& plan, std::int64_t granule) noexcept
      : memory_(std::move(memory)), plan_(plan), granule_(granule) {}

  [[nodiscard]] std::int64_t num_regions() const noexcept {
    return Layout::storage == storage_order::layer_major ? plan_.view.num_layers : 1;
  }
  [[nodiscard]] std::int64_t region_bytes(std::int32_t num_blocks) const noexcept {
    return (num_blocks * plan_.view.block_stride + granule_ - 1) / granule_ * granule_;
  }

  /// Puts memory behind the bytes [first, last) of every region, or of none.
  [[nodiscard]] bool map(std::int64_t first, std::int64_t last) noexcept {
    for (auto region = std::int64_t{0}; region < num_regions(); ++region) {
      if (!memory_.map(plan_.view.base + region * plan_.view.layer_stride + first,
                       static_cast<std::size_t>(last - first))) {
        unmap(region, first, last);
        return false;
      }
    }
    return true;
  }

  /// Takes the memory behind the bytes [first, last) of the first regions.
  void unmap(std::int64_t regions, std::int64_t first, std::int64_t last) noexcept {
    for (auto region = std::int64_t{0}; region < regions; ++region) {
      memory_.unmap(plan_.view.base + region * plan_.view.layer_stride + first, static_cast<std::size_t>(last - first));
    }
  }

  [[no_unique_address]] Allocator memory_;
  storage_plan plan_;
  std::int64_t granule_ = 1;
  std::int32_t num_blocks_ = 0;
};

/// The view of one group's layers in blocks that all groups share: one base, the group's own strides; without memory
/// behind it. Blocks follow each other, with all layers of a block in one run, whatever order of layers the layout
/// names. Errors: as `plan_storage`.
template <memory_layout Layout>
[[nodiscard]] result<block_storage_view> plan_view(const group_config& group, const group_plan& plan,
                                                   element_size element, std::int64_t block_bytes,
                                                   std::int32_t num_blocks) noexcept {
  auto own = plan_storage<Layout>(group, plan.block_size, num_blocks, element);
  if (!own) {
    return own.error();
  }
  own->view.block_stride = block_bytes;
  own->view.layer_stride = plan.part_bytes;
  return own->view;
}

/// Owns the memory of every block of a pool that several groups share. Not initialised. Moving keeps the address.
///
/// There are addresses for the capacity of the configuration. With a `resizable_allocator`, memory is behind those of
/// the first blocks only, rounded up to whole granules. Other allocators provide memory for the capacity at once.
template <element Element, memory_layout Layout, allocator Allocator>
class group_storage {
 public:
  using element_type = Element;
  using layout_type = Layout;
  using allocator_type = Allocator;

  /// Errors: those of `validate`, `plan_memory` and `plan_view`; `size_overflow` when the pool has more bytes than 63
  /// bits count; `out_of_memory` with the requested bytes. Without memory (see `provides_memory`), only the plan.
  [[nodiscard]] static result<group_storage> create(const cache_config& config, Allocator memory = Allocator{}) {
    if (const auto valid = validate(config); !valid) {
      return valid.error();
    }
    const auto plan = plan_memory(config.groups, size_of_element<Element>, config.block_size);
    if (!plan) {
      return plan.error();
    }
    auto size = checked_size{};
    auto granule = std::int64_t{1};
    if constexpr (resizable) {
      granule = static_cast<std::int64_t>(memory.granule());
    }
    const auto bytes = size.round_up(size.multiply(plan->block_bytes, config.capacity()), granule);
    if (size.overflowed()) {
      return error{error_code::size_overflow, "number of blocks whose bytes 63 bits do not count", config.capacity()};
    }
    auto views = views_type{};
    for (std::size_t i = 0; i < config.groups.size(); ++i) {
      if (const auto& group = config.groups[i]; group.holds_tokens()) {
        auto view = plan_view<Layout>(group, plan->groups[i], size_of_element<Element>, plan->block_bytes,
                                      config.capacity());
        if (!view) {
          return view.error();
        }
        views[i] = *view;
      }
    }
    auto* base = static_cast<std::byte*>(nullptr);
    if constexpr (resizable) {
      base = memory.reserve(static_cast<std::size_t>(bytes), block_alignment);
    } else if constexpr (provides_memory<Allocator>) {
      base = memory.allocate(static_cast<std::size_t>(bytes), block_alignment);
    }
    if (provides_memory<Allocator> && base == nullptr) {
      return error{error_code::out_of_memory, "bytes of block storage", bytes};
    }
    auto made = group_storage{std::move(memory), config.capacity(), *plan, views, base, granule};
    if (const auto mapped = made.resize(config.num_blocks); !mapped) {
      return mapped.error();
    }
    return made;
  }

  group_storage(group_storage&& other) noexcept
      : memory_(std::move(other.memory_)),
        plan_(other.plan_),
        views_(other.views_),
        blocks_(std::exchange(other.blocks_, block_storage_view{})),
        granule_(other.granule_),
        num_blocks_(other.num_blocks_) {}
  group_storage& operator=(group_storage&&) = delete;
  ~group_storage() {
    if (provides_memory<Allocator> && blocks_.base != nullptr) {
      memory_.deallocate(blocks_.base, static_cast<std::size_t>(region_bytes(blocks_.num_blocks)));
    }
  }

  [[nodiscard]] const memory_plan& plan() const noexcept { return plan_; }
  /// The view of a group that holds tokens. Valid as long as the storage.
  [[nodiscard]] const block_storage_view& view(std::size_t group) const noexcept { return views_[group]; }
  /// Whole blocks, as one layer each: to copy and to move them.
  [[nodiscard]] const block_storage_view& blocks() const noexcept { return blocks_; }
  /// Bytes that the first blocks take, the rest of the last granule included.
  [[nodiscard]] std::int64_t bytes_for(std::int32_t num_blocks) const noexcept {
    return provides_memory<Allocator> ? region_bytes(resizable ? num_blocks : blocks_.num_blocks) : 0;
  }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_for(num_blocks_); }

  /// Provides memory for so many blocks, at most the capacity, as `block_storage::resize` does.
  [[nodiscard]] result<void> resize(std::int32_t num_blocks) noexcept {
    if constexpr (resizable) {
      const auto before = region_bytes(num_blocks_);
      const auto after = region_bytes(num_blocks);
      if (after > before && !memory_.map(blocks_.base + before, static_cast<std::size_t>(after - before))) {
        return error{error_code::out_of_memory, "bytes of block storage", after - before};
      }
      if (after < before) {
        memory_.unmap(blocks_.base + after, static_cast<std::size_t>(before - after));
      }
    }
    num_blocks_ = num_blocks;
    return {};
  }

  /// One part of a state in the block that holds it. `part` counts within the block.
  [[nodiscard]] std::byte* state_part(std::size_t group, block_id block, std::int32_t part) const noexcept {
    assert(part < plan_.groups[group].parts_per_block && "a block of this group holds fewer parts");
    return blocks_.block(0, static_cast<std::int64_t>(block)) + part * plan_.groups[group].part_bytes;
  }

 private:
  using views_type = std::array<block_storage_view, group_list::max_size>;
  static constexpr bool resizable = resizable_allocator<Allocator>;

  group_storage(Allocator memory, std::int32_t capacity, const memory_plan& plan, const views_type& views,
                std::byte* base, std::int64_t granule) noexcept
      : memory_(std::move(memory)), plan_(plan), views_(views), granule_(granule) {
    blocks_.base = base;
    blocks_.block_stride = plan.block_bytes;
    blocks_.layer_stride = plan.block_bytes * capacity;
    blocks_.num_blocks = capacity;
    blocks_.num_layers = 1;
    for (auto& view : views_) {
      view.base = base;
    }
  }

  [[nodiscard]] std::int64_t region_bytes(std::int32_t num_blocks) const noexcept {
    return (num_blocks * blocks_.block_stride + granule_ - 1) / granule_ * granule_;
  }

  [[no_unique_address]] Allocator memory_;
  memory_plan plan_;
  views_type views_;
  block_storage_view blocks_;
  std::int64_t granule_ = 1;
  std::int32_t num_blocks_ = 0;
};

}  // namespace pagedkv
