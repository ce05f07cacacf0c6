#pragma once

#include <pagedkv/cache/groups/commit.hpp>
#include <pagedkv/cache/record_access.hpp>

#include <cstdint>

namespace pagedkv::detail {

/// Ends a sequence. Its computed blocks stay findable until their eviction, as does the newest state of its answer.
template <layered State>
[[nodiscard]] result<void> release(State& state, sequence_id id, const release_hint& hint) noexcept {
  return end_record(state.sequences, static_cast<std::uint64_t>(id), [&](group_sequence& s) {
    report<event_kind::released>(state.events,
                                 [&] { return cache_event{.sequence = id, .num_tokens = s.num_tokens}; });
    const auto guard = state.guard_nodes();
    if (s.has_copies) {
      attach_blocks_again(state, s);
    }
    attach_newest_state(state, s);
    state.release_all(s.tables, state.releases_of(s, hint), state.pool.fence_of(s.steps));
    state.let_go(s.tail);
  });
}

}  // namespace pagedkv::detail
