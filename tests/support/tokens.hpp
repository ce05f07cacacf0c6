#pragma once

#include <pagedkv/core/ids.hpp>

#include <concepts>
#include <cstddef>
#include <numeric>
#include <vector>

namespace pagedkv::test {

/// Tokens that count from `first` on.
[[nodiscard]] std::vector<token> numbered(std::integral auto num_tokens, token first = 0) {
  auto made = std::vector<token>(static_cast<std::size_t>(num_tokens));
  std::iota(made.begin(), made.end(), first);
  return made;
}

/// The same, where the first one matters more than their number.
[[nodiscard]] inline std::vector<token> text(token first, std::size_t num_tokens) {
  return numbered(num_tokens, first);
}

}  // namespace pagedkv::test
