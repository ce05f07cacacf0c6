#pragma once

#include <pagedkv/cache/operations/parts/release_blocks.hpp>

namespace pagedkv::detail {

/// Hides a published block, to which the caller has a reference, from look-ups that begin afterwards. The block is
/// freed with its last reference. False when it was hidden before: a lease may have kept it since.
template <class State>
bool withdraw(State& state, block_id block) noexcept {
  const bool first = state.pool.withdraw(block) && state.index.withdraw(block);
  if (first) {
    count<&cache_statistics::invalidations>(state.counts, 1);
    state.report_eviction(block);
  }
  return first;
}

}  // namespace pagedkv::detail
