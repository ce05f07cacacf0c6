#pragma once

#include <pagedkv/cache/block_copier.hpp>
#include <pagedkv/cache/operations/checks.hpp>
#include <pagedkv/cache/operations/prompt.hpp>
#include <pagedkv/cache/operations/release_blocks.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/detail/runs.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

// Appends to one sequence, and the copy on write that precedes them.

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

/// Brings a table to the blocks for so many tokens, those behind the last token writable: all or nothing. If others can
/// see the last block, `copy(pairs)` copies it first. (When that copy fails in the backend, blocks that were evicted
/// to make room stay evicted; nothing else has changed.)
template <class State>
[[nodiscard]] result<void> make_room(State& state, sequence& s, std::int64_t num_tokens, block_copier copy) noexcept {
  const auto size = s.blocks.size();
  const bool partial = static_cast<std::size_t>(s.num_tokens) % state.block_size() != 0;
  const bool must_copy = partial && !appends_in_place(state, s, last_block(state, s));
  const auto total = std::max(size, state.blocks_for(num_tokens));
  const auto num_fresh = total - size + (must_copy ? 1 : 0);
  const auto num_held = total - s.blocks.num_dropped();
  if (num_held > static_cast<std::size_t>(state.pool.size())) {
    return state.never_fits(num_held);
  }
  if (!s.blocks.try_reserve(size + num_fresh)) {
    return error{error_code::out_of_memory, "number of blocks in the block table",
                 static_cast<std::int64_t>(size + num_fresh)};
  }
  const auto last = must_copy ? last_block(state, s) : no_block;
  const auto num_rewritten = must_copy && state.pool.writable(last) ? std::size_t{1} : std::size_t{0};
  auto fresh = s.blocks.extend(num_fresh);
  if (auto allocated = state.allocate(fresh, {.rewritten = {&last, num_rewritten}}); !allocated) {
    s.blocks.withdraw(num_fresh);
    return allocated;
  }
  if (must_copy) {
    const auto replacement = fresh.back();
    if (auto copied = copy_last_block(state, s, replacement, copy); !copied) {
      state.pool.discard(fresh);
      s.blocks.withdraw(num_fresh);
      return copied;
    }
    s.blocks.withdraw(1);
    s.reuses_slots = false;
  }
  return {};
}

/// Writes tokens behind the last one; blocks for them are in the table and writable.
template <class State>
void store_tokens(State& state, sequence& s, std::span<const token> tokens) noexcept {
  while (!tokens.empty()) {
    const auto position = static_cast<std::size_t>(s.num_tokens);
    const auto offset = position % state.block_size();
    const auto run = tokens.first(std::min(tokens.size(), state.block_size() - offset));
    copy_tokens(run, state.index.tokens(s.blocks[position / state.block_size()]).subspan(offset));
    s.num_tokens += static_cast<std::int64_t>(run.size());
    tokens = tokens.subspan(run.size());
  }
}

/// Appends a run of tokens, and reserves slots for `num_ahead` more: all or nothing. `copy`: see `make_room`.
template <class State>
[[nodiscard]] [[gnu::noinline]] result<void> extend(State& state, sequence& s, const token_run& run,
                                                    std::int64_t num_ahead, block_copier copy) noexcept {
  if (auto checked = check_slots_ahead(num_ahead); !checked) {
    return checked;
  }
  const auto num_tokens = s.num_tokens + static_cast<std::int64_t>(run.tokens.size());
  if (auto checked = check_keys(run.keys, s, num_tokens); !checked) {
    return checked;
  }
  if (run.tokens.empty() && num_ahead == 0) {
    s.last_access = state.time();
    return {};
  }
  if (!reserve_keys(s, run.keys)) {
    return error{error_code::out_of_memory, "number of keys", static_cast<std::int64_t>(run.keys.size())};
  }
  if (auto made = make_room(state, s, num_tokens + num_ahead, copy); !made) {
    return made;
  }
  if (s.reuses_slots && state.blocks_for(num_tokens) != state.blocks_for(s.num_tokens)) {
    s.reuses_slots = false;
  }
  store_tokens(state, s, run.tokens);
  add_keys(s, run.keys);
  note_hashes(state, s, run.hashes);
  if (num_ahead != 0) {
    s.num_reserved = std::max(s.num_reserved, num_tokens + num_ahead);
  }
  find_room(state, s);
  s.last_access = state.time();
  return {};
}

/// Appends a run of tokens without keys or hashes if the last block has room for it. False, and nothing is changed, if
/// an append needs more.
template <class State>
[[nodiscard]] [[gnu::always_inline]] inline bool append_inside(State& state, sequence_id id,
                                                               const token_run& run) noexcept {
  return step_inside(state, id, [&](sequence_record::hot_part& hot) {
    const auto size = std::ssize(run.tokens);
    if (size > hot.end_of_room - hot.next_token || size == 0 || !run.tokens_only()) {
      return false;
    }
    hot.last_access = state.time();
    hot.next_token = std::copy(run.tokens.begin(), run.tokens.end(), hot.next_token);
    hot.num_tokens += size;
    return true;
  });
}
template <class State>
[[nodiscard]] [[gnu::always_inline]] inline bool append_inside(State& state, sequence_id id, token next) noexcept {
  return step_inside(state, id, [&](sequence_record::hot_part& hot) {
    if (!hot.has_room()) [[unlikely]] {
      return false;
    }
    hot.last_access = state.time();
    *hot.next_token++ = next;
    ++hot.num_tokens;
    return true;
  });
}

template <class State>
[[nodiscard]] result<void> reserve_slots(State& state, sequence_id id, std::int64_t num_ahead,
                                         block_copier copy) noexcept {
  return visit_sequence(state, id, [&](auto& s) { return extend(state, s, {}, num_ahead, copy); });
}

}  // namespace pagedkv::detail
