#pragma once

#include <pagedkv/device/aligned_allocations.hpp>
#include <pagedkv/device/device.hpp>
#include <pagedkv/policy/allocator/concept.hpp>

namespace pagedkv::hip {

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

}  // namespace pagedkv::hip
