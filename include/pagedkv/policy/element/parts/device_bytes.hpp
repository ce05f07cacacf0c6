#pragma once

#include <pagedkv/core/host_device.hpp>

#include <cstdint>

// Bytes of several words put together, in device code. `PAGEDKV_DEVICE_BYTES` is defined where that is worth a function
// of its own.
#if defined(__CUDA_ARCH__)

  #define PAGEDKV_DEVICE_BYTES

namespace pagedkv {

/// The low bytes of four words, the first one's lowest: three instructions.
[[nodiscard]] PAGEDKV_HOST_DEVICE inline std::uint32_t device_low_bytes(std::uint32_t first, std::uint32_t second,
                                                                        std::uint32_t third,
                                                                        std::uint32_t fourth) noexcept {
  const auto low = __byte_perm(first, second, 0x0040);
  const auto high = __byte_perm(third, fourth, 0x0040);
  return __byte_perm(low, high, 0x5410);
}

}  // namespace pagedkv

#endif
