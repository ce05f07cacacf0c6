#pragma once

#include <pagedkv/core/error.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/policy/events/concept.hpp>

#include <cstdint>

namespace pagedkv::detail {

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
