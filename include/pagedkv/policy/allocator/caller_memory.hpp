#pragma once

#include <pagedkv/policy/allocator/concept.hpp>

#include <memory>
#include <span>

namespace pagedkv {

/// Memory of the caller's for the blocks of one cache, which it outlives: one allocation at a time, at the first
/// aligned address. `plan_storage<Layout>(config, size_of_element<Element>)` tells how many bytes a cache needs;
/// alignment to `block_alignment` comes on top. The backend reaches the memory: device memory suits `hip_backend` only.
class caller_memory {
 public:
  explicit caller_memory(std::span<std::byte> memory) noexcept : free_(memory) {}

  [[nodiscard]] std::byte* allocate(std::size_t bytes, std::size_t alignment) noexcept {
    auto* start = static_cast<void*>(free_.data());
    auto size = free_.size();
    if (std::align(alignment, bytes, start, size) == nullptr) {
      return nullptr;
    }
    taken_ = free_;
    free_ = {};
    return static_cast<std::byte*>(start);
  }
  void deallocate(std::byte* /*pointer*/, std::size_t /*bytes*/) noexcept { free_ = taken_; }

 private:
  std::span<std::byte> free_;
  std::span<std::byte> taken_ = {};
};

static_assert(allocator<caller_memory>);

}  // namespace pagedkv
