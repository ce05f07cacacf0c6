#pragma once

#include "uninstrumented.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::test {

/// A number between -magnitude and magnitude, of one draw from a generator of 32 bits: a standard distribution would
/// take most of the time of a test that is instrumented.
template <class Random>
[[nodiscard]] float draw_number(float magnitude, Random& random) {
  return magnitude * (static_cast<float>(random() >> 8) * 0x1p-23F - 1);
}

/// The draw after this one of a linear congruential generator (Knuth's MMIX), whose upper bits are the most random. The
/// standard library's generators take ten times as long where they are instrumented.
[[nodiscard]] PAGEDKV_UNINSTRUMENTED inline std::uint64_t following_draw(std::uint64_t last) {
  return last * 6364136223846793005U + 1442695040888963407U;
}

/// Fills `numbers` with numbers between -magnitude and magnitude, which follow from one draw.
template <class Random>
PAGEDKV_UNINSTRUMENTED void draw_numbers(std::span<float> numbers, float magnitude, Random& random) {
  auto draw = following_draw(random());
  auto* const first = numbers.data();
  const auto size = numbers.size();
  for (auto i = std::size_t{0}; i < size; ++i) {
    draw = following_draw(draw);
    first[i] = magnitude * (static_cast<float>(draw >> 40) * 0x1p-23F - 1);
  }
}

/// Fills `bytes` with bytes that follow from one draw.
template <class Random>
PAGEDKV_UNINSTRUMENTED void draw_bytes(std::span<std::byte> bytes, Random& random) {
  auto draw = following_draw(random());
  auto* const first = bytes.data();
  const auto size = bytes.size();
  for (auto i = std::size_t{0}; i < size; ++i) {
    draw = following_draw(draw);
    first[i] = static_cast<std::byte>(draw >> 56);
  }
}

}  // namespace pagedkv::test
