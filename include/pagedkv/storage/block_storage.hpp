#pragma once

#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/layout/concept.hpp>
#include <pagedkv/storage/layout.hpp>

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

}  // namespace pagedkv
