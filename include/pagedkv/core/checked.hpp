#pragma once

#include <cstdint>

namespace pagedkv {

/// Signed 64-bit arithmetic on sizes that notes whether any step overflowed. Results after that are meaningless.
class checked_size {
 public:
  /// The product; any number after an overflow, which `overflowed` reports.
  [[nodiscard]] constexpr std::int64_t multiply(std::int64_t a, std::int64_t b) noexcept {
    auto product = std::int64_t{};
    overflowed_ |= __builtin_mul_overflow(a, b, &product);
    return product;
  }

  /// See `multiply`.
  [[nodiscard]] constexpr std::int64_t add(std::int64_t a, std::int64_t b) noexcept {
    auto sum = std::int64_t{};
    overflowed_ |= __builtin_add_overflow(a, b, &sum);
    return sum;
  }

  /// To the next multiple of `unit`, which is positive.
  [[nodiscard]] constexpr std::int64_t round_up(std::int64_t a, std::int64_t unit) noexcept {
    return multiply(add(a, unit - 1) / unit, unit);
  }

  /// Whether any result so far did not fit.
  [[nodiscard]] constexpr bool overflowed() const noexcept { return overflowed_; }

 private:
  bool overflowed_ = false;
};

}  // namespace pagedkv
