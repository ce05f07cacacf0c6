#pragma once

#include <pagedkv/device/status.hpp>

namespace pagedkv::hip {

/// Checks that a device of this number exists. Errors: `backend_failure` with the runtime's message when there is no
/// device at all; `invalid_argument` for a number outside the runtime's range.
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

  /// Whether the device could be made the current one.
  [[nodiscard]] runtime::status status() const noexcept { return status_; }

 private:
  runtime::status status_ = runtime::success;
  int previous_ = -1;  // the device to restore; -1 for none
};

}  // namespace pagedkv::hip
