#pragma once

#include <pagedkv/detail/memory.hpp>
#include <pagedkv/device/device.hpp>
#include <pagedkv/kernels/runtime.hpp>
#include <pagedkv/policy/allocator/concept.hpp>

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

/// Memory of one device. Not initialised. Releasing it waits for the device: allocate once, or use `pool_allocator`.
class device_allocator {
 public:
  static constexpr bool on_host = false;

  explicit device_allocator(int device = 0) noexcept : device_(device) {}

  [[nodiscard]] std::byte* allocate(std::size_t bytes, std::size_t alignment) noexcept {
    const auto scope = device_scope(device_);
    if (scope.status() != runtime::success) {
      return nullptr;
    }
    return allocations_.allocate(bytes, alignment,
                                 [](void** start, std::size_t size) { return runtime::allocate(start, size); });
  }

  void deallocate(std::byte* pointer, std::size_t /*bytes*/) noexcept {
    static_cast<void>(runtime::release(allocations_.forget(pointer)));
  }

 private:
  int device_;
  aligned_allocations allocations_;
};

static_assert(allocator<device_allocator>);

/// Page-locked host memory: devices copy from and to it while their kernels run, and kernels may access it. Slow to
/// allocate. Not initialised.
class pinned_allocator {
 public:
  [[nodiscard]] std::byte* allocate(std::size_t bytes, std::size_t alignment) noexcept {
    return allocations_.allocate(bytes, alignment,
                                 [](void** start, std::size_t size) { return runtime::allocate_pinned(start, size); });
  }

  void deallocate(std::byte* pointer, std::size_t /*bytes*/) noexcept {
    static_cast<void>(runtime::release_pinned(allocations_.forget(pointer)));
  }

 private:
  aligned_allocations allocations_;
};

static_assert(allocator<pinned_allocator>);

/// Device memory from the runtime's pool, in the order of one stream: later work of that stream may use an allocation,
/// and the memory is reused after the work enqueued before its release. Neither call waits. Not initialised. The stream
/// must outlive the allocator and its allocations.
class pool_allocator {
 public:
  static constexpr bool on_host = false;

  explicit pool_allocator(runtime::stream stream) noexcept : stream_(stream) {}

  [[nodiscard]] std::byte* allocate(std::size_t bytes, std::size_t alignment) noexcept {
    return allocations_.allocate(bytes, alignment, [this](void** start, std::size_t size) {
      return runtime::allocate_async(start, size, stream_);
    });
  }

  void deallocate(std::byte* pointer, std::size_t /*bytes*/) noexcept {
    static_cast<void>(runtime::release_async(allocations_.forget(pointer), stream_));
  }

 private:
  runtime::stream stream_;
  aligned_allocations allocations_;
};

static_assert(allocator<pool_allocator>);

}  // namespace pagedkv::hip
