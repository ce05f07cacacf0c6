#pragma once

#include <pagedkv/detail/with_memory.hpp>
#include <pagedkv/kernels/runtime.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv::hip {

/// The alignment that every device runtime guarantees.
inline constexpr auto runtime_alignment = std::size_t{256};

/// Provides a larger alignment than the runtime guarantees: over-allocates, and keeps the start of each allocation on
/// the host, because the host may not write into device memory. Not thread-safe.
class aligned_allocations {
 public:
  /// `take(&pointer, bytes)` allocates from the runtime.
  template <class Take>
  [[nodiscard]] std::byte* allocate(std::size_t bytes, std::size_t alignment, Take take) noexcept {
    auto* start = static_cast<void*>(nullptr);
    if (alignment <= runtime_alignment) {
      return take(&start, bytes) == runtime::success ? static_cast<std::byte*>(start) : nullptr;
    }
    if (bytes + alignment < bytes || !reserve_one() || take(&start, bytes + alignment) != runtime::success) {
      return nullptr;
    }
    const auto misaligned = reinterpret_cast<std::uintptr_t>(start) % alignment;
    auto* const aligned = static_cast<std::byte*>(start) + (misaligned == 0 ? 0 : alignment - misaligned);
    moved_.push_back({aligned, start});
    return aligned;
  }

  /// Removes the entry of `pointer` and returns the start of its allocation.
  [[nodiscard]] void* forget(std::byte* pointer) noexcept {
    for (auto& each : moved_) {
      if (each.aligned == pointer) {
        auto* const start = each.start;
        each = moved_.back();
        moved_.pop_back();
        return start;
      }
    }
    return pointer;
  }

 private:
  struct moved {
    std::byte* aligned;
    void* start;
  };

  [[nodiscard]] bool reserve_one() noexcept {
    return detail::with_memory(
        [&] {
          moved_.reserve(moved_.size() + 1);
          return true;
        },
        false);
  }

  std::vector<moved> moved_;
};

}  // namespace pagedkv::hip
