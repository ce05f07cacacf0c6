#pragma once

#include <pagedkv/core/host_device.hpp>

#include <cstdint>

namespace pagedkv {

/// One of two numbers, without a jump. Compilers turn a conditional expression into a jump around float arithmetic,
/// which prevents vectorisation.
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::uint32_t select_bits(bool condition, std::uint32_t yes,
                                                                      std::uint32_t no) noexcept {
  const auto mask = 0u - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

}  // namespace pagedkv
