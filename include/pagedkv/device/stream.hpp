#pragma once

#include <pagedkv/device/device.hpp>

#include <utility>

namespace pagedkv::hip {

/// Owns a stream of one device that does not wait for the default stream. Destroying it lets enqueued work finish.
/// Operations take constant time, but for the wait of `synchronize`.
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

/// Owns a mark in a stream. A step records one after its last kernel and retires when it is reached; this waits for the
/// step's own work only, not for the whole device. Operations take constant time, but for the wait of `synchronize`.
class event {
 public:
  /// Throws `exception`.
  explicit event(int device = 0) {
    const auto scope = device_scope(device);
    require(scope.status(), "the choice of a device");
    require(runtime::create_event(&handle_), "the creation of an event");
  }

  event(event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

  event& operator=(event other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  ~event() {
    if (handle_ != nullptr) {
      static_cast<void>(runtime::destroy_event(handle_));
    }
  }

  /// Marks the work enqueued so far; replaces an earlier mark. Errors: `backend_failure`.
  [[nodiscard]] result<void> record(runtime::stream stream) noexcept {
    return to_result(runtime::record_event(handle_, stream), "the recording of an event");
  }

  /// Whether the work before the mark is done; true when nothing was recorded. Errors: `backend_failure`, also of the
  /// work before.
  [[nodiscard]] result<bool> reached() const noexcept {
    const auto status = runtime::query_event(handle_);
    if (status == runtime::success || status == runtime::error_not_ready) {
      return status == runtime::success;
    }
    return to_result(status, "the query of an event").error();
  }

  /// Waits until the work before the mark is done. Errors: `backend_failure`, also of the work before.
  [[nodiscard]] result<void> synchronize() const noexcept {
    return to_result(runtime::synchronize_event(handle_), "the wait for an event");
  }

  /// Makes later work in `stream` wait for the mark. The call does not wait. Errors: `backend_failure`.
  [[nodiscard]] result<void> hold(runtime::stream stream) const noexcept {
    return to_result(runtime::wait_for_event(stream, handle_), "a stream's wait for an event");
  }

 private:
  runtime::event handle_ = nullptr;
};

}  // namespace pagedkv::hip
