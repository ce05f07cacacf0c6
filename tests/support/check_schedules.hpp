#pragma once

#include "scheduler.hpp"

#include <catch2/catch_test_macros.hpp>

namespace pagedkv::testing {

/// Checks that no schedule failed.
inline void check_passes(const finding& found) {
  CAPTURE(found.failure, found.seed, found.schedule, found.schedules);
  CHECK(found.failure.empty());
}

/// Checks that no schedule failed, and that all were explored.
inline void check_complete(const finding& found) {
  CAPTURE(found.schedules);
  check_passes(found);
  CHECK(found.complete);
}

/// Fails an execution that has not failed yet, if an invariant of the cache does not hold.
template <class Cache>
void expect_sound(execution& e, Cache& cache) {
  if (e.failure().empty()) {
    for (const auto& sentence : cache.check_invariants()) {
      e.fail(sentence);
    }
  }
}

}  // namespace pagedkv::testing
