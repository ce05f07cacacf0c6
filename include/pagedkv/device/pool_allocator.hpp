#pragma once

#include <pagedkv/device/aligned_allocations.hpp>
#include <pagedkv/policy/allocator/concept.hpp>

namespace pagedkv::hip {

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
