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

}  // namespace pagedkv::testing
