#pragma once

#include <pagedkv/policy/free_list/all.hpp>

namespace pagedkv::test {

/// Makes runs in small pools, too: evicts out of turn whatever completes a group of ids, unless the eviction policy
/// forbids it.
struct eager_runs : contiguous_runs {
  static constexpr int most_ahead = 700;
  static constexpr int least_age = 0;
};

}  // namespace pagedkv::test
