#pragma once

#include <pagedkv/device/device.hpp>
#include <pagedkv/device/status.hpp>

namespace pagedkv::hip {

/// Lets kernels and copies of `device` access all memory of `peer`, which `device_allocator` allocated before or will
/// allocate. May be called again. Errors: `invalid_argument` for the same device or one that does not exist;
/// `backend_failure` where the hardware or the system does not connect them.
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

}  // namespace pagedkv::hip
