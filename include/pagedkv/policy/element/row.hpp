#pragma once

#include <pagedkv/policy/element.hpp>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv {

/// Largest magnitude in a row; NaN if it holds one; 0 if it is empty. Magnitudes are compared as integers, which order
/// like the numbers and put infinity above every number and NaN above infinity.
[[nodiscard]] inline float absmax(std::span<const float> row) noexcept {
  auto largest = std::int32_t{0};
  for (const auto number : row) {
    const auto magnitude = __builtin_bit_cast(std::int32_t, number) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  return __builtin_bit_cast(float, largest);
}

/// Encodes the numbers of one token and head, and returns their scale (1 for unscaled elements). Sizes must be equal.
template <element E>
float encode_row(std::span<const float> row, std::span<typename E::storage> stored) noexcept {
  assert(row.size() == stored.size());
  auto scale = 1.0f;
  if constexpr (E::scaled) {
    scale = E::scale_for(absmax(row));
  }
  const auto* const numbers = row.data();
  auto* const out = stored.data();
  for (auto i = std::size_t{0}; i < row.size(); ++i) {
    out[i] = E::encode(numbers[i], scale);
  }
  return scale;
}

/// Decodes what `encode_row` stored with `scale`. Sizes must be equal.
template <element E>
void decode_row(std::span<const typename E::storage> stored, float scale, std::span<float> row) noexcept {
  assert(row.size() == stored.size());
  const auto* const in = stored.data();
  auto* const numbers = row.data();
  for (auto i = std::size_t{0}; i < stored.size(); ++i) {
    numbers[i] = E::decode(in[i], scale);
  }
}

}  // namespace pagedkv
