#pragma once

#include <pagedkv/device/device.hpp>
#include <pagedkv/device/status.hpp>

#include <cstddef>
#include <type_traits>
#include <utility>

namespace pagedkv::hip {

/// Names an allocation of device memory in other processes on this host; copy its bytes to them.
using memory_handle = runtime::memory_handle;

static_assert(std::is_trivially_copyable_v<memory_handle>);

/// The handle of an allocation of `device_allocator`, by its start: a cache's storage starts at `view().base`. Errors:
/// `backend_failure`, for example for memory of other kinds.
[[nodiscard]] inline result<memory_handle> share_memory(std::byte* start) noexcept {
  auto handle = memory_handle{};
  const auto made = to_result(runtime::get_memory_handle(&handle, start), "the handle of memory");
  return made ? result<memory_handle>{handle} : made.error();
}

/// Device memory of another process, until the end of the scope: the other process keeps it allocated, and every copy
/// from it must be complete before. A process opens a handle once, and never its own.
class shared_memory {
 public:
  /// Opens the memory on a device, which is the memory's own or a peer of it. Errors: `backend_failure`.
  [[nodiscard]] static result<shared_memory> open(const memory_handle& handle, int device = 0) noexcept {
    const auto scope = device_scope(device);
    auto* opened = static_cast<void*>(nullptr);
    auto done = to_result(scope.status(), "the choice of a device");
    if (done) {
      done = to_result(runtime::open_memory_handle(&opened, handle), "the opening of another process's memory");
    }
    return done ? result<shared_memory>{shared_memory{static_cast<std::byte*>(opened)}} : done.error();
  }

  shared_memory(shared_memory&& other) noexcept : start_(std::exchange(other.start_, nullptr)) {}
  shared_memory& operator=(shared_memory&& other) noexcept {
    std::swap(start_, other.start_);
    return *this;
  }
  ~shared_memory() {
    if (start_ != nullptr) {
      static_cast<void>(runtime::close_memory_handle(start_));
    }
  }

  /// The first byte, as this process addresses it; null after a move.
  [[nodiscard]] std::byte* data() const noexcept { return start_; }

 private:
  explicit shared_memory(std::byte* start) noexcept : start_(start) {}

  std::byte* start_;
};

}  // namespace pagedkv::hip
