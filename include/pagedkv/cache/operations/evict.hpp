#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/metrics/counters.hpp>
#include <pagedkv/metrics/statistics.hpp>

#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Evicts ahead of need; an open step may read the victims. Errors: `unknown_step`.
template <class State>
[[nodiscard]] result<std::int64_t> evict(State& state, std::span<block_id> blocks, step_id step) noexcept {
  const auto fence = state.pool.fence_of(step);
  if (fence == 0) {
    return error{error_code::unknown_step, "step", static_cast<std::int64_t>(step)};
  }
  auto watched = state.chains();
  const auto num_evicted = static_cast<std::int64_t>(state.pool.evict(blocks, watched, state.time(), fence));
  count<&cache_statistics::evictions>(state.counts, num_evicted);
  return num_evicted;
}

}  // namespace pagedkv::detail
