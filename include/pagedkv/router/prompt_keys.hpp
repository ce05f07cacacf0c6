#pragma once

#include <pagedkv/router/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv {

/// Writes the keys of a prompt's full blocks, as many as `keys` has room for; returns how many.
template <block_keys Keys>
[[nodiscard]] std::size_t prompt_keys(const Keys& scheme, std::span<const token> prompt, std::size_t block_size,
                                      std::span<std::uint64_t> keys) noexcept {
  const auto count = std::min(prompt.size() / block_size, keys.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto tokens = prompt.subspan(i * block_size, block_size);
    keys[i] = i == 0 ? scheme.first(tokens) : scheme.next(keys[i - 1], tokens);
  }
  return count;
}

}  // namespace pagedkv
