#pragma once

#include <pagedkv/cache/operations/parts/release_blocks.hpp>

namespace pagedkv::detail {

/// Hides a published block, to which the caller has a reference, from look-ups that begin afterwards. The block is
/// freed with its last reference.
template <class State>
void withdraw(State& state, block_id block) noexcept {
  if (state.pool.withdraw(block) && state.index.withdraw(block)) {
    count<&cache_statistics::invalidations>(state.counts, 1);
    state.report_eviction(block);
  }
}

}  // namespace pagedkv::detail
