#pragma once

#include "uninstrumented.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace pagedkv::test {

inline constexpr auto no_difference = std::ptrdiff_t{-1};

/// Where two vectors first differ, or `no_difference`.
template <class T>
[[nodiscard]] PAGEDKV_UNINSTRUMENTED std::ptrdiff_t first_difference(const std::vector<T>& a, const std::vector<T>& b) {
  const auto* const of_a = a.data();
  const auto* const of_b = b.data();
  const auto common = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  for (auto i = std::ptrdiff_t{0}; i < common; ++i) {
    if (!(of_a[i] == of_b[i])) {
      return i;
    }
  }
  return a.size() == b.size() ? no_difference : common;
}

}  // namespace pagedkv::test
