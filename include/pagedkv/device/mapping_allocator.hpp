#pragma once

#include <pagedkv/detail/memory.hpp>
#include <pagedkv/device/device.hpp>
#include <pagedkv/kernels/runtime_mapping.hpp>
#include <pagedkv/policy/allocator/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace pagedkv::hip {

/// Memory of one device that comes and goes behind reserved addresses, through the device's virtual memory: kernels and
/// captured graphs keep their addresses. Maps granule by granule, at about 0.03 ms each. Not initialised. Unmapping
/// does not wait for the device. Not thread-safe.
class mapping_allocator {
 public:
  static constexpr bool on_host = false;

  /// Memory is mapped in pieces of the device's own granule, 2 MiB on today's devices. Throws `exception` when the
  /// device does not exist or has no virtual memory.
  explicit mapping_allocator(int device = 0) : device_(device) {
    const auto scope = device_scope(device);
    require(scope.status(), "the choice of a device");
    require(runtime::get_mapping_granule(&granule_, device), "the granule of a device's memory");
  }

  [[nodiscard]] std::size_t granule() const noexcept { return granule_; }

  [[nodiscard]] std::byte* reserve(std::size_t bytes, std::size_t /*alignment*/) noexcept {
    const auto size = whole_granules(bytes);
    return size < bytes ? nullptr
                        : detail::with_memory([&] { return reserve_granules(size); }, static_cast<std::byte*>(nullptr));
  }

  [[nodiscard]] bool map(std::byte* pointer, std::size_t bytes) noexcept {
    const auto scope = device_scope(device_);
    auto& mapped = reservation_of(pointer);
    auto end = pointer;
    while (end != pointer + bytes && runtime::map_memory(end, granule_, device_) == runtime::success) {
      mapped.is_mapped[mapped.index(end, granule_)] = true;
      end += granule_;
    }
    if (end == pointer + bytes && runtime::allow_access(pointer, bytes, device_) == runtime::success) {
      return true;
    }
    unmap(pointer, static_cast<std::size_t>(end - pointer));
    return false;
  }

  void unmap(std::byte* pointer, std::size_t bytes) noexcept {
    const auto scope = device_scope(device_);
    unmap(reservation_of(pointer), pointer, bytes);
  }

  [[nodiscard]] std::byte* allocate(std::size_t bytes, std::size_t alignment) noexcept {
    auto* const pointer = reserve(bytes, alignment);
    if (pointer != nullptr && !map(pointer, whole_granules(bytes))) {
      deallocate(pointer, bytes);
      return nullptr;
    }
    return pointer;
  }

  void deallocate(std::byte* pointer, std::size_t bytes) noexcept {
    const auto scope = device_scope(device_);
    auto& ended = reservation_of(pointer);
    unmap(ended, pointer, whole_granules(bytes));
    static_cast<void>(runtime::release_addresses(pointer, whole_granules(bytes)));
    std::swap(ended, reservations_.back());
    reservations_.pop_back();
  }

 private:
  struct reservation {
    std::byte* start = nullptr;
    std::vector<bool> is_mapped;  // by granule

    [[nodiscard]] std::size_t index(const std::byte* pointer, std::size_t granule) const noexcept {
      return static_cast<std::size_t>(pointer - start) / granule;
    }
  };

  [[nodiscard]] std::size_t whole_granules(std::size_t bytes) const noexcept {
    return (bytes + granule_ - 1) / granule_ * granule_;
  }

  [[nodiscard]] std::byte* reserve_granules(std::size_t bytes) {
    reservations_.reserve(reservations_.size() + 1);
    auto made = reservation{nullptr, std::vector<bool>(bytes / granule_)};
    const auto scope = device_scope(device_);
    auto* start = static_cast<void*>(nullptr);
    if (scope.status() != runtime::success || runtime::reserve_addresses(&start, bytes) != runtime::success) {
      return nullptr;
    }
    made.start = static_cast<std::byte*>(start);
    reservations_.push_back(std::move(made));
    return static_cast<std::byte*>(start);
  }

  [[nodiscard]] reservation& reservation_of(const std::byte* pointer) noexcept {
    return *std::ranges::find_if(reservations_, [&](const reservation& each) {
      return pointer >= each.start && each.index(pointer, granule_) < each.is_mapped.size();
    });
  }

  void unmap(reservation& from, std::byte* pointer, std::size_t bytes) noexcept {
    for (auto* next = pointer; next != pointer + bytes; next += granule_) {
      const auto index = from.index(next, granule_);
      if (from.is_mapped[index]) {
        static_cast<void>(runtime::unmap_memory(next, granule_));
        from.is_mapped[index] = false;
      }
    }
  }

  int device_;
  std::size_t granule_ = 0;
  std::vector<reservation> reservations_;
};

static_assert(resizable_allocator<mapping_allocator>);

}  // namespace pagedkv::hip
