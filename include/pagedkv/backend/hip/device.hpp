#pragma once

#include <pagedkv/backend/hip/status.hpp>

namespace pagedkv::hip {

/// Whether there is a device of this number. Errors: `backend_failure` with the runtime's words where there is none at
/// all; `invalid_argument` for a number that is not one of its devices'.
[[nodiscard]] inline result<void> check_device(int device) noexcept {
  constexpr auto* search = "the search for a device by hipGetDeviceCount";
  auto count = 0;
  if (const auto found = to_result(hipGetDeviceCount(&count), search); !found) {
    return found;
  }
  if (count == 0) {
    return to_result(hipErrorNoDevice, search);
  }
  if (device < 0 || device >= count) {
    return error{error_code::invalid_argument, "device", device, count};
  }
  return {};
}

/// Makes a device the calling thread's current one until the end of the scope. Streams, events, allocations and
/// launches go to the current device.
class device_scope {
 public:
  explicit device_scope(int device) noexcept {
    auto current = 0;
    status_ = hipGetDevice(&current);
    if (status_ == hipSuccess && current != device) {
      status_ = hipSetDevice(device);
      previous_ = current;
    }
  }

  device_scope(const device_scope&) = delete;
  device_scope& operator=(const device_scope&) = delete;

  ~device_scope() {
    if (previous_ >= 0) {
      static_cast<void>(hipSetDevice(previous_));
    }
  }

  [[nodiscard]] hipError_t status() const noexcept { return status_; }

 private:
  hipError_t status_ = hipSuccess;
  int previous_ = -1;  // what to go back to; -1 for nothing
};

}  // namespace pagedkv::hip
