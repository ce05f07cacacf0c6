#pragma once

#include <pagedkv/cache/operations/parts/release_blocks.hpp>

#include <algorithm>

namespace pagedkv::detail {

/// Gives back every block of a sequence. Its branch and its trunk may have ended each for itself.
template <class State>
void release(State& state, sequence& from, const release_hint& hint) noexcept {
  auto how = release_of(from, state.time(), hint, state.block_size());
  const auto first = from.blocks.num_dropped();
  const auto trunk = std::clamp(from.num_branch_blocks, first, from.blocks.size());
  how.ended = hint.session_ended || hint.branch_complete;
  release_blocks(state, from, trunk, from.blocks.size(), how);
  how.ended = hint.session_ended;
  release_blocks(state, from, first, trunk, how);
  from.blocks.clear();
  from.keys.clear();
}

}  // namespace pagedkv::detail
