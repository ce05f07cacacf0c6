#pragma once

#include <pagedkv/cache/cache_state.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pagedkv::detail {

/// Ends that no time can tell are as good as never.
[[nodiscard]] constexpr timestamp retention_end(timestamp now, std::int64_t retention) noexcept {
  auto end = std::int64_t{0};
  return __builtin_add_overflow(static_cast<std::int64_t>(now), retention, &end) || retention == 0
             ? timestamp{0}
             : static_cast<timestamp>(end);
}

/// What the eviction policy is told of the blocks of one sequence.
[[nodiscard]] inline block_release release_of(const sequence& from, timestamp now, const release_hint& hint,
                                              std::size_t block_size) noexcept {
  auto how = block_release{};
  how.num_chain_blocks = static_cast<std::uint32_t>(from.num_published_blocks);
  how.num_prompt_tokens = static_cast<std::uint32_t>(from.num_prompt_tokens);
  how.num_output_tokens = static_cast<std::uint32_t>(from.num_tokens - from.num_prompt_tokens);
  how.num_cached_blocks = static_cast<std::uint32_t>(static_cast<std::size_t>(from.num_cached_tokens) / block_size);
  how.priority = from.options.priority;
  how.ended = hint.session_ended;
  how.expected_return = hint.expected_return != 0 ? hint.expected_return : from.options.expected_return;
  if (how.num_cached_blocks > from.blocks.num_dropped() && how.num_cached_blocks <= from.blocks.size()) {
    how.last_cached = from.blocks[how.num_cached_blocks - 1];
  }
  how.retain_until = retention_end(now, from.options.retention);
  return how;
}

/// Gives back one reference to the block at `index` of a chain. `fence`: see `fence_of`.
template <class State>
void release_block(State& state, block_id block, std::size_t index, block_release how, std::uint32_t fence) noexcept {
  how.hash = state.index.link(block).hash;
  how.parent = state.index.parent(block);
  how.depth = static_cast<std::uint32_t>(index);
  state.pool.release(block, how, fence);
}

/// Gives back one reference to each of the entries [first, last) of a table that these steps use, deepest first.
template <class State>
void release_blocks(State& state, const block_table& blocks, std::size_t first, std::size_t last,
                    const block_release& how, const step_set& steps) noexcept {
  if constexpr (State::locking_type::family::concurrent) {
    state.note_peak();  // allocations did not, since threads share the counts; but only releases lower them
  }
  const auto fence = state.pool.fence_of(steps);
  for (auto i = last; i > first; --i) {
    release_block(state, blocks[i - 1], i - 1, how, fence);
  }
}

template <class State>
void release_all(State& state, sequence& from, const release_hint& hint) noexcept {
  auto how = release_of(from, state.time(), hint, state.block_size());
  const auto first = from.blocks.num_dropped();
  const auto trunk = std::clamp(from.num_branch_blocks, first, from.blocks.size());
  how.ended = hint.session_ended || hint.branch_complete;
  release_blocks(state, from.blocks, trunk, from.blocks.size(), how, from.steps);
  how.ended = hint.session_ended;
  release_blocks(state, from.blocks, first, trunk, how, from.steps);
  from.blocks.clear();
}

/// Whether the last block, which is not full, can be appended to in place: one sequence holds it, no prefix hit can
/// find it, and no open step reads the slots that would be written.
template <class State>
[[nodiscard]] bool appends_in_place(const State& state, const sequence& s) noexcept {
  return state.pool.writable(s.blocks.back()) && !(s.reuses_slots && state.pool.fenced(s.blocks.back()));
}

/// Finds how much of the last block can be appended to in place.
template <class State>
void find_room(State& state, sequence& s) noexcept {
  const auto offset = static_cast<std::size_t>(s.num_tokens) % state.block_size();
  s.forget_room();
  if (offset != 0 && appends_in_place(state, s)) {
    const auto room = state.index.tokens(s.blocks.back()).subspan(offset);
    s.next_token = room.data();
    s.end_of_room = room.data() + room.size();
  }
}

/// What the block at `index` of a sequence continues, or would; everything before it is published.
template <class State>
[[nodiscard]] chain_link link_before(const State& state, const sequence& s, std::size_t index) noexcept {
  return index == s.blocks.num_dropped() ? s.window_start : state.index.link(s.blocks[index - 1]);
}

/// Errors: `invalid_argument` outside [start of the first block still held, length].
template <class State>
[[nodiscard]] result<void> truncate(State& state, sequence& s, std::int64_t num_tokens) noexcept {
  const auto dropped = s.blocks.num_dropped();
  const auto start = static_cast<std::int64_t>(dropped * state.block_size());
  if (num_tokens < start) {
    return error{error_code::invalid_argument, "number of tokens to keep, before those held,", num_tokens, start};
  }
  if (num_tokens > s.num_tokens) {
    return error{error_code::invalid_argument, "number of tokens to keep", num_tokens, s.num_tokens};
  }
  const auto num_kept = state.blocks_for(num_tokens);
  if (num_kept < s.blocks.size()) {
    release_blocks(state, s.blocks, num_kept, s.blocks.size(), release_of(s, state.time(), {}, state.block_size()),
                   s.steps);
    s.blocks.shrink(num_kept);
  }
  if (static_cast<std::size_t>(num_tokens) % state.block_size() != 0 && num_tokens < s.num_tokens) {
    s.reuses_slots = true;
    if (const auto fence = state.pool.fence_of(s.steps); fence != 0) {
      state.pool.fence(s.blocks.back(), fence);
    }
  }
  s.num_tokens = num_tokens;
  s.num_computed_tokens = std::min(s.num_computed_tokens, num_tokens);
  s.num_prompt_tokens = std::min(s.num_prompt_tokens, num_tokens);
  s.num_cached_tokens = std::min(s.num_cached_tokens, num_tokens);
  const auto num_full = static_cast<std::size_t>(num_tokens) / state.block_size();
  if (num_full < s.num_published_blocks) {
    s.num_published_blocks = num_full;
    s.tail = link_before(state, s, num_full);
  }
  find_room(state, s);
  return {};
}

/// Errors: `invalid_argument` beyond the computed tokens: what is not computed is not published and cannot be
/// continued.
template <class State>
[[nodiscard]] result<void> drop_before(State& state, sequence& s, std::int64_t num_tokens) noexcept {
  if (num_tokens < 0 || num_tokens > s.num_computed_tokens) {
    return error{error_code::invalid_argument, "start of the window", num_tokens, s.num_computed_tokens};
  }
  const auto last = static_cast<std::size_t>(num_tokens) / state.block_size();
  const auto first = s.blocks.num_dropped();
  if (last > first) {
    s.window_start = state.index.link(s.blocks[last - 1]);
    release_blocks(state, s.blocks, first, last, release_of(s, state.time(), {}, state.block_size()), s.steps);
    s.blocks.drop_before(last);
  }
  return {};
}

}  // namespace pagedkv::detail
