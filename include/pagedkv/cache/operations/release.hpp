#pragma once

#include <pagedkv/cache/operations/append.hpp>
#include <pagedkv/cache/operations/release_blocks.hpp>
#include <pagedkv/cache/operations/unlaunched.hpp>
#include <pagedkv/cache/record_map.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

// How a sequence gets shorter: at its end, at its start, altogether.

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

/// Keeps the first `num_tokens`; whole blocks past the end are released, reserved ones included. A prompt that is cut
/// ends there. Calls `around(hide)`, which calls `hide()`, if the sequence may have published ahead of a launch: `hide`
/// hides those blocks past the end, and returns how many.
/// Errors: `invalid_argument` outside [start of the first block still held, length].
template <class State, class Around>
[[nodiscard]] result<void> truncate(State& state, sequence& s, std::int64_t num_tokens, Around&& around) noexcept {
  const auto dropped = s.blocks.num_dropped();
  const auto start = static_cast<std::int64_t>(dropped * state.block_size());
  if (num_tokens < start) {
    return error{error_code::invalid_argument, "number of tokens to keep, before those held,", num_tokens, start};
  }
  if (num_tokens > s.num_tokens) {
    return error{error_code::invalid_argument, "number of tokens to keep", num_tokens, s.num_tokens};
  }
  const auto num_full = static_cast<std::size_t>(num_tokens) / state.block_size();
  if (is_unlaunched(state, s)) {
    around([&] { return withdraw_unlaunched(state, s, num_full); });
  }
  const auto num_kept = state.blocks_for(num_tokens);
  if (num_kept < s.blocks.size()) {
    release_blocks(state, s, num_kept, s.blocks.size(), release_of(s, state.time(), {}, state.block_size()));
    s.blocks.shrink(num_kept);
  }
  if (static_cast<std::size_t>(num_tokens) % state.block_size() != 0 &&
      num_tokens < std::max(s.num_tokens, s.num_reserved)) {
    s.reuses_slots = true;
    if (const auto fence = state.pool.fence_of(s.steps); fence != 0) {
      state.pool.fence(s.blocks.back(), fence);
    }
  }
  if (num_tokens < s.num_tokens) {
    s.num_prompt_tokens = std::min(s.num_prompt_tokens, num_tokens);
    s.keys.resize(keys_between(s.keys, 0, num_tokens).size());
  }
  s.num_reserved = 0;
  s.num_tokens = num_tokens;
  s.num_computed_tokens = std::min(s.num_computed_tokens, num_tokens);
  s.num_cached_tokens = std::min(s.num_cached_tokens, num_tokens);
  s.num_hashed_blocks = std::min(s.num_hashed_blocks, num_full);
  if (num_full < s.num_published_blocks) {
    s.num_published_blocks = num_full;
    s.tail = state.link_before(s, num_full);
  }
  find_room(state, s);
  return {};
}

template <class State>
[[nodiscard]] result<void> truncate(State& state, sequence_id id, std::int64_t num_tokens) noexcept {
  return visit_sequence(state, id, [&](sequence& s) {
    return truncate(state, s, num_tokens, [](auto&& hide) { hide(); });
  });
}

/// Releases the blocks wholly before token `num_tokens`.
/// Errors: `invalid_argument` beyond the computed tokens: what is not computed is not published and cannot be
/// continued.
template <class State>
[[nodiscard]] result<void> drop_before(State& state, sequence& s, std::int64_t num_tokens) noexcept {
  if (num_tokens < 0 || num_tokens > s.num_computed_tokens) {
    return error{error_code::invalid_argument, "start of the window, outside of the committed tokens,", num_tokens,
                 num_tokens < 0 ? 0 : s.num_computed_tokens};
  }
  const auto last = static_cast<std::size_t>(num_tokens) / state.block_size();
  const auto first = s.blocks.num_dropped();
  if (last > first) {
    s.window_start = last <= s.num_published_blocks ? state.index.link(s.blocks[last - 1]) : s.tail;
    release_blocks(state, s, first, last, release_of(s, state.time(), {}, state.block_size()));
    s.blocks.drop_before(last);
  }
  return {};
}

template <class State>
[[nodiscard]] result<void> drop_before(State& state, sequence_id id, std::int64_t num_tokens) noexcept {
  return visit_sequence(state, id, [&](sequence& s) { return drop_before(state, s, num_tokens); });
}

}  // namespace pagedkv::detail
