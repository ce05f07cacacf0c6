#pragma once

#include "model_text.hpp"

#include <pagedkv/core/config.hpp>
#include <pagedkv/storage/view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv::test {

/// The number at one place of the K or V that the model's "computation" gives the last token of a prefix: it depends on
/// everything before it, as a transformer's does. One of 24 bits, or eighths up to 16 with four significant bits, which
/// every element but int8 represents exactly.
[[nodiscard]] inline float computed_number(std::uint64_t name, std::size_t g, std::int32_t layer, bool is_value,
                                           std::size_t place, bool wide) {
  const auto bits = mix(name, 64 * (8 * place + g) + 2 * static_cast<std::uint64_t>(layer) + is_value);
  return wide ? static_cast<float>(bits >> 40)
              : static_cast<float>((static_cast<int>(bits >> 59) - 16) * (1 << (bits >> 57 & 3))) / 8.0f;
}

[[nodiscard]] inline std::uint8_t computed_state_byte(std::uint64_t name, std::int32_t part) {
  return static_cast<std::uint8_t>(mix(name, static_cast<std::uint64_t>(part)));
}

/// The keys or the values of so many tokens in one layer of a group, `[token][head][dim]` without gaps.
struct model_rows {
  std::int32_t num_heads;
  std::int32_t dim;
  std::size_t width;
  std::vector<float> numbers;

  model_rows(const group_config& group, bool of_values, std::size_t num_tokens)
      : num_heads(group.num_kv_heads),
        dim(of_values ? group.value_dim : group.key_dim),
        width(static_cast<std::size_t>(num_heads) * static_cast<std::size_t>(dim)),
        numbers(num_tokens * width) {}

  /// The values of a latent group are the first numbers of its keys.
  model_rows(const group_config& group, bool of_values, const std::vector<std::uint64_t>& names, std::size_t g,
             std::int32_t layer, bool wide)
      : model_rows(group, of_values, names.size()) {
    const bool is_value = of_values && group.kind != group_kind::latent;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = computed_number(names[i / width], g, layer, is_value, i % width, wide);
    }
  }

  template <class Number>
  [[nodiscard]] token_rows<Number> view() {
    const auto num_tokens = width == 0 ? 0 : numbers.size() / width;
    return {
        numbers.data(), static_cast<std::int64_t>(width), dim, static_cast<std::int64_t>(num_tokens), num_heads, dim};
  }

  /// Whether these numbers are those, exactly or within half of the scale of a token's head.
  [[nodiscard]] bool equal(const model_rows& wanted, bool scaled) const {
    const auto size = static_cast<std::size_t>(dim);
    for (auto row = std::size_t{0}; scaled && row < numbers.size(); row += size) {
      auto largest = 0.0f;
      for (auto i = row; i < row + size; ++i) {
        largest = std::max(largest, std::abs(wanted.numbers[i]));
      }
      for (auto i = row; i < row + size; ++i) {
        if (!(std::abs(numbers[i] - wanted.numbers[i]) <= largest / 127 / 2 * 1.0001f)) {
          return false;
        }
      }
    }
    return scaled || numbers == wanted.numbers;
  }
};

}  // namespace pagedkv::test
