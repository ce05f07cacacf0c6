#pragma once

#include <pagedkv/cache/operations/create_sequence.hpp>
#include <pagedkv/detail/copy_run.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Puts a copy of the last block in its place: K/V through `copy(from, to)`, tokens here. `fresh` is in use once.
template <class State, class Copy>
[[nodiscard]] result<void> copy_last_block(State& state, sequence& s, block_id fresh, Copy&& copy) noexcept {
  const auto index = static_cast<std::size_t>(s.num_tokens) / state.block_size();
  const auto shared = s.blocks[index];
  if (auto copied = copy(shared, fresh); !copied) {
    return copied;
  }
  const auto offset = static_cast<std::size_t>(s.num_tokens) % state.block_size();
  const auto source = state.index.tokens(shared);
  copy_run(source.first(offset), state.index.tokens(fresh));
  s.blocks.replace(index, fresh);
  if constexpr (State::locking_type::family::concurrent) {
    state.note_peak();  // see `release_blocks`
  }
  release_block(state, shared, index, release_of(s, state.time(), {}, state.block_size()),
                state.pool.fence_of(s.steps));
  state.counts.add(counter::copies, 1);
  if constexpr (reports<typename State::events_type, event_kind::copied>) {
    state.events.emit({.kind = event_kind::copied, .block = fresh, .origin = shared});
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
    copy_run(run, state.index.tokens(s.blocks[position / state.block_size()]).subspan(offset));
    s.num_tokens += static_cast<std::int64_t>(run.size());
    tokens = tokens.subspan(run.size());
  }
}

/// Appends a run of tokens: all or nothing. The last block is copied first if others can see it. (When that copy fails
/// in the backend, blocks that were evicted to make room stay evicted; nothing else has changed.)
template <class State, class Copy>
[[nodiscard]] result<void> extend(State& state, sequence& s, std::span<const token> tokens, Copy&& copy) noexcept {
  if (tokens.empty()) {
    return {};
  }
  const auto size = s.blocks.size();
  const bool partial = static_cast<std::size_t>(s.num_tokens) % state.block_size() != 0;
  const bool must_copy = partial && !appends_in_place(state, s);
  const auto total = state.blocks_for(s.num_tokens + static_cast<std::int64_t>(tokens.size()));
  const auto num_fresh = total - size + (must_copy ? 1 : 0);
  const auto num_held = total - s.blocks.num_dropped();
  if (num_held > static_cast<std::size_t>(state.config.num_blocks)) {
    return state.never_fits(num_held);
  }
  if (!s.blocks.try_reserve(size + num_fresh)) {
    return error{error_code::out_of_memory, "number of blocks in the block table",
                 static_cast<std::int64_t>(size + num_fresh)};
  }
  const auto rewritten = must_copy && state.pool.writable(s.blocks.back()) ? s.blocks.back() : no_block;
  auto fresh = s.blocks.extend(num_fresh);
  if (auto allocated = state.allocate(fresh, {.rewritten = rewritten}); !allocated) {
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
  }
  s.reuses_slots = s.reuses_slots && num_fresh == 0;
  store_tokens(state, s, tokens);
  find_room(state, s);
  return {};
}

/// Publishes the next block of a sequence, whose chained hash this is, unless it is published already. `newest`: nobody
/// has published anything after the block before it.
template <class State>
void publish_next(State& state, sequence& s, std::uint64_t hash, bool& newest) noexcept {
  const auto block = s.blocks[s.num_published_blocks];
  if (state.pool.state(block).published()) {
    newest = false;
  } else {
    // Before another thread can find the block, and before it can be evicted.
    if constexpr (reports<typename State::events_type, event_kind::stored>) {
      state.events.emit({.kind = event_kind::stored,
                         .block = block,
                         .origin = s.tail.block,
                         .hash = hash,
                         .parent_hash = s.tail.hash,
                         .tokens = state.index.tokens(block),
                         .tag = s.options.salt});
    }
    auto twin = no_block;
    if (newest) {
      state.index.publish_first(block, s.tail, hash);
    } else {
      twin = state.index.publish(block, s.tail, hash, look(state));
    }
    newest = twin == no_block;
    state.pool.publish(block);
    if (twin != no_block) {
      state.pool.note_twin(block);
      state.pool.note_twin(twin);
    }
  }
  s.tail = state.index.link(block);
  ++s.num_published_blocks;
}

/// Hashes run ahead, and the cache lines that publishing will touch are fetched meanwhile.
template <class State>
void publish_up_to(State& state, sequence& s, std::size_t num_blocks) noexcept {
  auto hashes = std::array<std::uint64_t, 16>{};
  auto newest = false;
  while (s.num_published_blocks < num_blocks) {
    const auto first = s.num_published_blocks;
    const auto count = std::min(hashes.size(), num_blocks - first);
    auto last_hash = s.tail.hash;
    for (std::size_t i = 0; i < count; ++i) {
      const auto block = s.blocks[first + i];
      last_hash = hashes[i] = state.index.hash(last_hash, state.index.tokens(block));
      state.index.prefetch_publication(block, last_hash);
    }
    for (std::size_t i = 0; i < count; ++i) {
      publish_next(state, s, hashes[i], newest);
    }
  }
}

/// Publishes the full blocks among the first `num_tokens`, whose K/V the caller declares written. Errors:
/// `invalid_argument` beyond the length, or before what was committed.
template <class State>
[[nodiscard]] result<void> commit(State& state, sequence& s, std::int64_t num_tokens) noexcept {
  if (num_tokens > s.num_tokens) {
    return error{error_code::invalid_argument, "number of computed tokens", num_tokens, s.num_tokens};
  }
  if (num_tokens < s.num_computed_tokens) {
    return error{error_code::invalid_argument, "number of computed tokens, fewer than committed,", num_tokens,
                 s.num_computed_tokens};
  }
  s.num_computed_tokens = num_tokens;
  publish_up_to(state, s, static_cast<std::size_t>(num_tokens) / state.block_size());
  return {};
}

}  // namespace pagedkv::detail
