#pragma once

#include <pagedkv/core/host_device.hpp>

#include <bit>
#include <cstdint>

namespace pagedkv::kernels {

__extension__ typedef unsigned __int128 uint128;

/// Divides by a number that is only known at launch, without a device's slow 64-bit division: a multiplication and a
/// shift, exact for every dividend that is not negative (Granlund and Montgomery, "Division by invariant integers using
/// multiplication", 1994).
class divider {
 public:
  divider() = default;

  /// `divisor` is positive.
  explicit divider(std::int32_t divisor) noexcept
      : divisor_(divisor), shift_(static_cast<std::int32_t>(std::bit_width(static_cast<std::uint32_t>(divisor - 1)))) {
    const auto wide = static_cast<std::uint32_t>(divisor);
    multiplier_ = static_cast<std::uint64_t>(((uint128{1} << (63 + shift_)) + wide - 1) / wide);
  }

  struct parts {
    std::int64_t quotient;
    std::int32_t remainder;
  };

  /// `dividend` is not negative.
  [[nodiscard]] PAGEDKV_HOST_DEVICE parts split(std::int64_t dividend) const noexcept {
    const auto product = uint128{2 * static_cast<std::uint64_t>(dividend)} * multiplier_;
    const auto quotient = static_cast<std::int64_t>(static_cast<std::uint64_t>(product >> 64) >> shift_);
    return {quotient, static_cast<std::int32_t>(dividend - quotient * divisor_)};
  }

 private:
  std::int32_t divisor_ = 1;
  std::int32_t shift_ = 0;                             // 2^shift is the first power of two from the divisor up
  std::uint64_t multiplier_ = std::uint64_t{1} << 63;  // 2^(63 + shift) / divisor, rounded up: below 2^64
};

}  // namespace pagedkv::kernels
