#pragma once

#include <pagedkv/cache/block_copier.hpp>
#include <pagedkv/cache/operations/parts/release_blocks.hpp>
#include <pagedkv/detail/copy_run.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace pagedkv::detail {

/// The block with the end of a sequence, which is not full. Later blocks of the table are reserved.
template <class State>
[[nodiscard]] block_id last_block(const State& state, const sequence& s) noexcept {
  return s.blocks[static_cast<std::size_t>(s.num_tokens) / state.block_size()];
}

/// The decision of copy on write: an append fills the last block without a copy if one sequence holds the block, no
/// prefix hit can find it, and no open step reads the slots that would be written.
template <class State>
[[nodiscard]] bool appends_in_place(const State& state, const sequence& s, block_id last) noexcept {
  return state.pool.writable(last) && !(s.reuses_slots && state.pool.fenced(last));
}

/// Calls `visit(block)` on the last block if an append would copy it only because others hold it, too.
template <class State>
void for_each_shared_end(const State& state, const sequence& s, auto&& visit) noexcept {
  if (static_cast<std::size_t>(s.num_tokens) % state.block_size() != 0) {
    const auto last = last_block(state, s);
    if (const auto seen = state.pool.state(last);
        seen.count() > 1 && !seen.published() && !(s.reuses_slots && state.pool.fenced(last))) {
      visit(last);
    }
  }
}

/// Caches the part of the last block, or of the first reserved one, that appends may fill without a copy.
template <class State>
void find_room(State& state, sequence& s) noexcept {
  const auto index = static_cast<std::size_t>(s.num_tokens) / state.block_size();
  const auto offset = static_cast<std::size_t>(s.num_tokens) % state.block_size();
  s.forget_room();
  if (index < s.blocks.size() && (offset == 0 || appends_in_place(state, s, s.blocks[index]))) {
    const auto room = state.index.tokens(s.blocks[index]).subspan(offset);
    s.hot.next_token = room.data();
    s.hot.end_of_room = room.data() + room.size();
    s.reuses_slots = s.reuses_slots && offset != 0;  // no token was in a reserved block
  }
}

/// Replaces the last block by a copy: K/V through `copy(pairs)`, tokens here. `fresh` is in use once.
template <class State>
[[nodiscard]] result<void> copy_last_block(State& state, sequence& s, block_id fresh, block_copier copy) noexcept {
  const auto index = static_cast<std::size_t>(s.num_tokens) / state.block_size();
  const auto shared = s.blocks[index];
  const auto pair = block_pair{static_cast<std::int32_t>(shared), static_cast<std::int32_t>(fresh)};
  if (auto copied = copy({&pair, 1}); !copied) {
    return copied;
  }
  const auto offset = static_cast<std::size_t>(s.num_tokens) % state.block_size();
  const auto source = state.index.tokens(shared);
  copy_run(source.first(offset), state.index.tokens(fresh));
  s.blocks.replace(index, fresh);
  if constexpr (State::locking_type::family::concurrent) {
    state.note_peak();  // see `release_blocks`
  }
  auto how = release_of(s, state.time(), {}, state.block_size());
  apply_ranges(how, s, index, state.block_size(), state.time());
  release_block(state, shared, index, how, state.pool.fence_of(s.steps));
  count<&cache_statistics::copies>(state.counts, 1);
  report<event_kind::copied>(state.events, [&] { return cache_event{.block = fresh, .origin = shared}; });
  return {};
}

}  // namespace pagedkv::detail
