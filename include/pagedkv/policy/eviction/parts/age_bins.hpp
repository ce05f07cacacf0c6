#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// Ages on a scale of two steps to an octave, so that the same bins serve small caches and large ones.
struct age_bins {
  static constexpr auto count = std::size_t{40};

  [[nodiscard]] static constexpr std::size_t of(std::uint32_t age) noexcept {
    if (age < 8) {
      return 0;
    }
    const auto octave = static_cast<std::size_t>(std::bit_width(age)) - 1;
    return std::min((octave - 3) * 2 + (age >> (octave - 1) & 1) + 1, count - 1);
  }

  [[nodiscard]] static constexpr std::uint32_t start(std::size_t bin) noexcept {
    return bin == 0 ? 0 : static_cast<std::uint32_t>(2 + (bin - 1) % 2) << ((bin - 1) / 2 + 2);
  }

  /// How far an age lies between the start of its bin and that of the next.
  [[nodiscard]] static constexpr float fraction(std::uint32_t age) noexcept {
    const auto width = age < 8 ? 8U : std::bit_floor(age) / 2;
    return static_cast<float>(age & (width - 1)) / static_cast<float>(width);
  }
};

}  // namespace pagedkv
