#pragma once

#include <pagedkv/core/host_device.hpp>

#include <bit>
#include <cstdint>
#include <type_traits>

namespace pagedkv::kernels {

__extension__ typedef unsigned __int128 uint128;

/// Divides by a number that is known only at launch, without a device's slow division: a multiplication and a shift,
/// exact for every non-negative dividend (Granlund and Montgomery, "Division by invariant integers using
/// multiplication", 1994). `Dividend` is 32 or 64 bits wide; 64 bits take four times as long on a device.
template <class Dividend>
class divider {
  using word = std::make_unsigned_t<Dividend>;
  using wide = std::conditional_t<sizeof(word) == 4, std::uint64_t, uint128>;
  static constexpr auto word_bits = static_cast<int>(sizeof(word) * 8);

 public:
  divider() = default;

  /// `divisor` is positive.
  explicit divider(std::int32_t divisor) noexcept
      : divisor_(divisor), shift_(static_cast<std::int32_t>(std::bit_width(static_cast<std::uint32_t>(divisor - 1)))) {
    const auto divided_by = static_cast<std::uint32_t>(divisor);
    multiplier_ = static_cast<word>(((wide{1} << (word_bits - 1 + shift_)) + divided_by - 1) / divided_by);
  }

  [[nodiscard]] PAGEDKV_HOST_DEVICE std::int32_t divisor() const noexcept { return divisor_; }

  struct parts {
    Dividend quotient;
    std::int32_t remainder;
  };

  /// `dividend` is not negative.
  [[nodiscard]] PAGEDKV_HOST_DEVICE parts split(Dividend dividend) const noexcept {
    const auto product = wide{2 * static_cast<word>(dividend)} * multiplier_;
    const auto quotient = static_cast<Dividend>(static_cast<word>(product >> word_bits) >> shift_);
    return {quotient, static_cast<std::int32_t>(dividend - quotient * divisor_)};
  }

 private:
  std::int32_t divisor_ = 1;
  std::int32_t shift_ = 0;                        // 2^shift is the smallest power of two not below the divisor
  word multiplier_ = word{1} << (word_bits - 1);  // 2^(word_bits - 1 + shift) / divisor, rounded up
};

}  // namespace pagedkv::kernels
