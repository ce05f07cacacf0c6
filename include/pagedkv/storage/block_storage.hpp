#pragma once

#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/layout/concept.hpp>
#include <pagedkv/storage/layout.hpp>

#include <utility>

namespace pagedkv {

/// Owns the memory of every block in every layer. Not initialised: a block is written before it is read, and padding is
/// never read as numbers. Moving the object keeps the address of the memory, so views stay valid.
template <element Element, memory_layout Layout, allocator Allocator>
class block_storage {
 public:
  using element_type = Element;
  using layout_type = Layout;
  using allocator_type = Allocator;

  /// Errors: those of `validate` and `plan_storage`; `out_of_memory` with the requested bytes.
  [[nodiscard]] static result<block_storage> create(const cache_config& config, Allocator memory = Allocator{}) {
    if (const auto valid = validate(config); !valid) {
      return valid.error();
    }
    auto plan = plan_storage<Layout>(config, size_of_element<Element>);
    if (!plan) {
      return plan.error();
    }
    plan->view.base = memory.allocate(static_cast<std::size_t>(plan->bytes), block_alignment);
    if (plan->view.base == nullptr) {
      return error{error_code::out_of_memory, "bytes of block storage", plan->bytes};
    }
    return block_storage{std::move(memory), *plan};
  }

  block_storage(block_storage&& other) noexcept
      : memory_(std::move(other.memory_)), plan_(std::exchange(other.plan_, storage_plan{})) {}

  block_storage& operator=(block_storage other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(plan_, other.plan_);
    return *this;
  }

  ~block_storage() {
    if (plan_.view.base != nullptr) {
      memory_.deallocate(plan_.view.base, static_cast<std::size_t>(plan_.bytes));
    }
  }

  /// Valid as long as the storage. After the storage was moved from: an empty view with a null base.
  [[nodiscard]] const block_storage_view& view() const noexcept { return plan_.view; }

  /// Bytes allocated, scales and padding included.
  [[nodiscard]] std::int64_t bytes() const noexcept { return plan_.bytes; }

 private:
  block_storage(Allocator memory, const storage_plan& plan) noexcept : memory_(std::move(memory)), plan_(plan) {}

  [[no_unique_address]] Allocator memory_;
  storage_plan plan_;
};

}  // namespace pagedkv
