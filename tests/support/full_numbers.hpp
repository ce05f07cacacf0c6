#pragma once

#include <cstdlib>
#include <string_view>

namespace pagedkv::testing {

/// Whether PAGEDKV_TEST_FULL is set and not empty: long runs are wanted.
[[nodiscard]] inline bool full_numbers() {
  const auto* const set = std::getenv("PAGEDKV_TEST_FULL");
  return set != nullptr && !std::string_view{set}.empty();
}

/// `full` if long runs are wanted, otherwise a number that is fast enough for every change.
template <class Number>
[[nodiscard]] Number scaled(Number everyday, Number full) {
  return full_numbers() ? full : everyday;
}

}  // namespace pagedkv::testing
