#pragma once

#include <pagedkv/backend/hip/device.hpp>

#include <utility>

namespace pagedkv::hip {

/// Owns a mark in a stream. A step records one after its last kernel and retires when it is reached: that waits for the
/// step's own work, never for the whole device.
class event {
 public:
  /// Throws `exception`.
  explicit event(int device = 0) {
    const auto scope = device_scope(device);
    require(scope.status(), "hipSetDevice");
    require(hipEventCreateWithFlags(&handle_, hipEventDisableTiming), "hipEventCreateWithFlags");
  }

  event(event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

  event& operator=(event other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  ~event() {
    if (handle_ != nullptr) {
      static_cast<void>(hipEventDestroy(handle_));
    }
  }

  /// Marks the work enqueued so far; forgets an earlier mark.
  [[nodiscard]] result<void> record(hipStream_t stream) noexcept {
    return to_result(hipEventRecord(handle_, stream), "hipEventRecord");
  }

  /// Whether the work before the mark is done; true when nothing was ever recorded.
  [[nodiscard]] result<bool> reached() const noexcept {
    const auto status = hipEventQuery(handle_);
    if (status == hipSuccess || status == hipErrorNotReady) {
      return status == hipSuccess;
    }
    return to_result(status, "hipEventQuery").error();
  }

  /// Waits until the work before the mark is done.
  [[nodiscard]] result<void> synchronize() const noexcept {
    return to_result(hipEventSynchronize(handle_), "hipEventSynchronize");
  }

  /// Lets work enqueued in `stream` from now on wait for the mark, without waiting here.
  [[nodiscard]] result<void> hold(hipStream_t stream) const noexcept {
    return to_result(hipStreamWaitEvent(stream, handle_, 0), "hipStreamWaitEvent");
  }

 private:
  hipEvent_t handle_ = nullptr;
};

}  // namespace pagedkv::hip
