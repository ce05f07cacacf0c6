#pragma once

#include <cstdlib>

namespace pagedkv::testing {

/// `full` with PAGEDKV_TEST_FULL set in the environment, else what a test can afford on every change.
template <class Number>
[[nodiscard]] Number scaled(Number everyday, Number full) {
  return std::getenv("PAGEDKV_TEST_FULL") != nullptr ? full : everyday;
}

}  // namespace pagedkv::testing
