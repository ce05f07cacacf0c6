#pragma once

#include <pagedkv/cache/operations/parts/release_blocks.hpp>
#include <pagedkv/cache/record_access.hpp>

#include <algorithm>
#include <cstdint>

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

/// Ends a sequence.
template <class State>
[[nodiscard]] result<void> release(State& state, sequence_id id, const release_hint& hint) noexcept {
  return end_record(state.sequences, static_cast<std::uint64_t>(id), [&](sequence& s) {
    report<event_kind::released>(state.events, [&] { return cache_event{.sequence = id, .num_tokens = s.num_tokens}; });
    release(state, s, hint);
  });
}

}  // namespace pagedkv::detail
