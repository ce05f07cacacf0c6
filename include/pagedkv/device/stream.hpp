#pragma once

#include <pagedkv/device/device.hpp>

#include <utility>

namespace pagedkv::hip {

/// Owns a stream of one device that does not wait for the default stream. Destroying it lets enqueued work finish.
class stream {
 public:
  /// Throws `exception`.
  explicit stream(int device = 0) {
    const auto scope = device_scope(device);
    require(scope.status(), "the choice of a device");
    require(runtime::create_stream(&handle_), "the creation of a stream");
  }

  stream(stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

  stream& operator=(stream other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  ~stream() {
    if (handle_ != nullptr) {
      static_cast<void>(runtime::destroy_stream(handle_));
    }
  }

  /// The runtime's handle, which this object owns.
  [[nodiscard]] runtime::stream get() const noexcept { return handle_; }

  /// Waits until the stream is empty. Errors: `backend_failure`, also for work enqueued earlier.
  [[nodiscard]] result<void> synchronize() const noexcept {
    return to_result(runtime::synchronize_stream(handle_), "the wait for a stream");
  }

 private:
  runtime::stream handle_ = nullptr;
};

}  // namespace pagedkv::hip
