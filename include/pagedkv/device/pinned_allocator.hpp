#pragma once

#include <pagedkv/device/aligned_allocations.hpp>
#include <pagedkv/device/device.hpp>
#include <pagedkv/policy/allocator/concept.hpp>

namespace pagedkv::hip {

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

}  // namespace pagedkv::hip
