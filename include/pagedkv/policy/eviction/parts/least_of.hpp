#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace pagedkv {

/// The least of `Count` numbers that are not negative, each of which may be set at any time: in groups, so that setting
/// one and finding the least look at a few dozen.
template <std::size_t Count>
class least_of {
 public:
  static constexpr auto none = std::numeric_limits<float>::max();

  least_of() {
    numbers_.fill(bits_of(none));
    least_.fill(bits_of(none));
  }

  [[nodiscard]] float at(std::size_t i) const noexcept { return std::bit_cast<float>(numbers_[i]); }

  void set(std::size_t i, float number) noexcept {
    numbers_[i] = bits_of(number);
    least_[i / group_size] = least_in<group_size>(group(i / group_size));
  }

  /// Where the least is; `Count` when all are `none`.
  [[nodiscard]] std::size_t find() const noexcept {
    const auto least = least_in<num_groups>(least_.data());
    if (least == bits_of(none)) {
      return Count;
    }
    const auto where = static_cast<std::size_t>(std::find(least_.begin(), least_.end(), least) - least_.begin());
    return static_cast<std::size_t>(std::find(group(where), group(where) + group_size, least) - numbers_.data());
  }

 private:
  // Bits of numbers that are not negative are in the same order, and compilers compare many at once.
  using bits = std::int32_t;

  static constexpr auto group_size = std::size_t{32};
  static constexpr auto num_groups = (Count + group_size - 1) / group_size;

  [[nodiscard]] static bits bits_of(float number) noexcept { return std::bit_cast<bits>(number); }
  [[nodiscard]] const bits* group(std::size_t i) const noexcept { return &numbers_[i * group_size]; }

  template <std::size_t Size>
  [[nodiscard]] static bits least_in(const bits* numbers) noexcept {
    auto least = numbers[0];
    for (auto i = std::size_t{1}; i < Size; ++i) {
      least = std::min(least, numbers[i]);
    }
    return least;
  }

  std::array<bits, num_groups * group_size> numbers_;
  std::array<bits, num_groups> least_;
};

}  // namespace pagedkv
