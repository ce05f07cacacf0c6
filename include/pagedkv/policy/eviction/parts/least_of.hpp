#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace pagedkv {

/// The least of `Count` numbers, each of which may be set at any time: in groups, so that setting one and finding the
/// least look at some thirty.
template <std::size_t Count>
class least_of {
 public:
  static constexpr auto none = std::numeric_limits<float>::max();

  least_of() {
    numbers_.fill(none);
    least_.fill(none);
  }

  [[nodiscard]] float at(std::size_t i) const noexcept { return numbers_[i]; }

  void set(std::size_t i, float number) noexcept {
    numbers_[i] = number;
    const auto* const group = &numbers_[i / group_size * group_size];
    least_[i / group_size] = *std::min_element(group, group + group_size);
  }

  /// Where the least is; `Count` when all are `none`.
  [[nodiscard]] std::size_t find() const noexcept {
    const auto least = std::min_element(least_.begin(), least_.end());
    if (*least == none) {
      return Count;
    }
    const auto* const group = &numbers_[static_cast<std::size_t>(least - least_.begin()) * group_size];
    return static_cast<std::size_t>(std::find(group, group + group_size, *least) - numbers_.data());
  }

 private:
  static constexpr auto group_size = std::size_t{32};
  static constexpr auto num_groups = (Count + group_size - 1) / group_size;

  std::array<float, num_groups * group_size> numbers_;
  std::array<float, num_groups> least_;
};

}  // namespace pagedkv
