#pragma once

#include <pagedkv/core/result.hpp>
#include <pagedkv/kernels/runtime.hpp>

#include <cstddef>
#include <type_traits>
#include <utility>

// Status of runtime calls, devices and the choice of one, access between peers, memory of other processes.

namespace pagedkv::hip {

/// Success, or the error of a call of the runtime. `call` has static storage. Constant time. Errors: `backend_failure`
/// with the call and the runtime's message.
[[nodiscard]] inline result<void> to_result(runtime::status status, const char* call) noexcept {
  if (status == runtime::success) {
    return {};
  }
  return error{error_code::backend_failure, call, static_cast<std::int64_t>(status), error::no_limit,
               runtime::error_text(status)};
}

/// Throws `exception` where a status is an error: constructors use it.
inline void require(runtime::status status, const char* call) { to_result(status, call).value(); }

/// Checks that a device of this number exists. Constant time. Errors: `backend_failure` with the runtime's message when
/// there is no device at all; `invalid_argument` for a number outside the runtime's range.
[[nodiscard]] inline result<void> check_device(int device) noexcept {
  constexpr auto* search = "the search for a device";
  auto count = 0;
  if (const auto found = to_result(runtime::get_device_count(&count), search); !found) {
    return found;
  }
  if (count == 0) {
    return to_result(runtime::error_no_device, search);
  }
  if (device < 0 || device >= count) {
    return pagedkv::detail::bad_index("device", device, count);
  }
  return {};
}

/// Makes a device the calling thread's current one until the end of the scope. Streams, events, allocations and
/// launches go to the current device.
class device_scope {
 public:
  explicit device_scope(int device) noexcept {
    auto current = 0;
    status_ = runtime::get_device(&current);
    if (status_ == runtime::success && current != device) {
      status_ = runtime::set_device(device);
      previous_ = current;
    }
  }

  device_scope(const device_scope&) = delete;
  device_scope& operator=(const device_scope&) = delete;

  ~device_scope() {
    if (previous_ >= 0) {
      static_cast<void>(runtime::set_device(previous_));
    }
  }

  /// Whether the device could be made the current one. Constant time.
  [[nodiscard]] runtime::status status() const noexcept { return status_; }

 private:
  runtime::status status_ = runtime::success;
  int previous_ = -1;  // the device to restore; -1 for none
};

/// Lets kernels and copies of `device` access all memory of `peer`, which `device_allocator` allocated before or will
/// allocate. May be called again. Constant time, beside the runtime's own work on that memory. Errors:
/// `invalid_argument` for the same device or one that does not exist; `backend_failure` where the hardware or the
/// system does not connect them.
[[nodiscard]] inline result<void> connect_peer(int device, int peer) noexcept {
  for (const auto each : {device, peer}) {
    if (const auto found = check_device(each); !found) {
      return found;
    }
  }
  if (device == peer) {
    return error{error_code::invalid_argument, "device, which is its own peer,", device};
  }
  auto reachable = 0;
  if (const auto asked =
          to_result(runtime::can_access_peer(&reachable, device, peer), "the question for access to a peer");
      !asked) {
    return asked;
  }
  if (reachable == 0) {
    return error{error_code::backend_failure, "number of a device that the first one cannot reach", peer};
  }
  const auto scope = device_scope(device);
  const auto selected = to_result(scope.status(), "the choice of a device");
  return selected ? to_result(runtime::enable_peer_access(peer), "access to a peer") : selected;
}

/// Names an allocation of device memory in other processes on this host; copy its bytes to them.
using memory_handle = runtime::memory_handle;

static_assert(std::is_trivially_copyable_v<memory_handle>);

/// The handle of an allocation of `device_allocator`, by its start: a cache's storage starts at `view().base`. Constant
/// time. Errors: `backend_failure`, for example for memory of other kinds.
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
