#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/metrics/counters.hpp>
#include <pagedkv/metrics/statistics.hpp>
#include <pagedkv/policy/events/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

// Blocks that leave the prefix index without being allocated.

namespace pagedkv::detail {

/// Evicts ahead of need, with what becomes useless; an open step may read the victims. Errors: `unknown_step`.
template <class State>
[[nodiscard]] result<std::int64_t> evict(State& state, std::span<block_id> blocks, step_id step) noexcept {
  const auto guard = state.guard_nodes();
  const auto fence = state.pool.fence_of(step);
  if (fence == 0) {
    return error{error_code::unknown_step, "step", static_cast<std::int64_t>(step)};
  }
  auto watched = state.chains();
  auto num_named = std::size_t{0};
  auto num_evicted = std::int64_t{0};
  while (num_named < blocks.size() &&
         state.pool.evict(blocks.subspan(num_named, 1), watched, state.time(), fence) != 0) {
    ++num_named;
    ++num_evicted;
    state.free_useless(fence, [&](block_id block) {
      ++num_evicted;
      if (num_named < blocks.size()) {
        blocks[num_named++] = block;
      }
    });
  }
  count<&cache_statistics::evictions>(state.counts, num_evicted);
  return static_cast<std::int64_t>(num_named);
}

/// Frees every evictable block, which is reported as one event; returns how many.
template <class State>
[[nodiscard]] result<std::int64_t> reset_prefix_cache(State& state) noexcept {
  const auto guard = state.guard_nodes();
  if (const auto num_occupied = state.pool.count_occupied(); num_occupied != 0) {
    return error{error_code::in_use, "number of blocks in use or retiring", num_occupied, 0};
  }
  auto&& chains = state.silent_chains();
  auto num_forgotten = state.pool.forget_evictable(chains);
  state.free_useless(0, [&](block_id) { ++num_forgotten; });
  report<event_kind::reset>(state.events, [&] { return cache_event{.num_blocks = num_forgotten}; });
  return num_forgotten;
}

}  // namespace pagedkv::detail
