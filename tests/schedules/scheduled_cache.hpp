#pragma once

#include "../support/scheduled_policies.hpp"
#include "../support/tokens.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>

namespace pagedkv::testing {

using test::numbered;

/// A lock-free cache whose threads a scheduler stops anywhere, with few blocks.
using cache_under_test = kv_cache<float32, scheduled_lock_free<>, scheduled_sweep<>>;

[[nodiscard]] inline cache_config six_blocks() {
  auto config = cache_config{};
  config.head_dim = 1;
  config.block_size = 2;
  config.num_blocks = 6;
  config.max_sequences = 8;
  config.hash_seed = 1;
  return config;
}

/// For operations that may have any result.
inline constexpr auto ignore = [](const auto& outcome) { static_cast<void>(outcome); };

}  // namespace pagedkv::testing
