#pragma once

#include "../support/printing.hpp"
#include "minimal_cache.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

namespace pagedkv::test {

inline constexpr auto block_size = std::int32_t{4};

using threaded_caches = std::tuple<kv_cache<rw_lock>, kv_cache<sharded_mutex>, kv_cache<lock_free, clock_sweep>>;
using caches = decltype(std::tuple_cat(std::declval<std::tuple<kv_cache<>>>(), std::declval<threaded_caches>()));

/// With one that has only what a tracker needs.
using all_caches = decltype(std::tuple_cat(std::declval<caches>(), std::declval<std::tuple<minimal_cache>>()));

/// A small cache and a tracker over it.
template <class Cache, class Preemption = recompute>
struct tracked_cache {
  explicit tracked_cache(std::int32_t num_blocks, const tracker_config& config = {}, Preemption preemption = {})
      : cache({.block_size = block_size, .num_blocks = num_blocks, .head_dim = 2, .max_sequences = 64}),
        tracker(cache, config, std::move(preemption)) {}

  /// A running request on so many blocks of its own, all committed.
  [[nodiscard]] request_id running(std::int64_t num_blocks, const request_options& options = {}) {
    return running_on(fresh_tokens(num_blocks * block_size), options);
  }
  [[nodiscard]] request_id running_on(const std::vector<token>& tokens, const request_options& options = {}) {
    const auto submitted = tracker.submit(tokens, options);
    REQUIRE(submitted);
    if constexpr (requires { cache.commit(submitted->sequence, 0); }) {
      REQUIRE(cache.commit(submitted->sequence, static_cast<std::int64_t>(tokens.size())));
    }
    return submitted->id;
  }

  /// Tokens that no other request has.
  [[nodiscard]] std::vector<token> fresh_tokens(std::int64_t num_tokens) {
    auto tokens = std::vector<token>(static_cast<std::size_t>(num_tokens));
    std::iota(tokens.begin(), tokens.end(), next_token);
    next_token += static_cast<token>(num_tokens);
    return tokens;
  }

  [[nodiscard]] request_state state(request_id id) { return tracker.describe(id).value().state; }
  [[nodiscard]] sequence_id sequence(request_id id) { return tracker.describe(id).value().sequence; }
  [[nodiscard]] std::int64_t in_use() {
    if constexpr (requires { cache.statistics(); }) {
      return cache.statistics().blocks.in_use;
    } else {
      return cache.in_use();
    }
  }

  void check_invariants() {
    if constexpr (requires { cache.check_invariants(); }) {
      CHECK(cache.check_invariants() == std::vector<std::string>{});
    }
  }

  Cache cache;
  request_tracker<Cache, Preemption> tracker;
  token next_token = 0;
};

[[nodiscard]] inline request_options with_priority(std::uint8_t priority, bool may_preempt = false) {
  auto options = request_options{};
  options.sequence.priority = priority;
  options.may_preempt = may_preempt;
  return options;
}

template <class Result>
[[nodiscard]] error_code code_of(const Result& outcome) {
  REQUIRE_FALSE(outcome);
  return outcome.error().code;
}

inline constexpr auto some_failure = error{error_code::backend_failure, "device", 7};

}  // namespace pagedkv::test
