#pragma once

#include <pagedkv/cache/operations/release.hpp>
#include <pagedkv/detail/copy_run.hpp>
#include <pagedkv/prefix/chain_match.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Keeps a block from eviction during a look at it.
template <class State>
struct block_hold {
  State& state;

  [[nodiscard]] bool take(block_id block) const noexcept { return state.pool.peek(block); }
  void drop(block_id block) const noexcept { state.pool.unpeek(block); }
};

/// Where nobody can change a block meanwhile, nothing has to be done for that.
template <class State>
struct block_glance {
  const State& state;

  [[nodiscard]] bool take(block_id block) const noexcept { return state.pool.can_hold(block); }
  void drop(block_id) const noexcept {}
};

template <class State>
[[nodiscard]] auto look(State& state) noexcept {
  if constexpr (State::locking_type::family::concurrent) {
    return block_hold<State>{state};
  } else {
    return block_glance<State>{state};
  }
}

/// Gives up the first `count` blocks of a table that `hold_prefix` took, deepest first: looks leave no trace.
template <class State>
void drop_prefix(State& state, const block_table& blocks, std::size_t count) noexcept {
  for (auto i = count; i > 0; --i) {
    if constexpr (State::locking_type::family::concurrent) {
      state.pool.unpeek(blocks[i - 1]);
    } else {
      release_block(state, blocks[i - 1], i - 1, block_release{}, 0);
    }
  }
}

/// Makes references of what `hold_prefix` took: the first `count` blocks of a table.
template <class State>
void keep_prefix([[maybe_unused]] State& state, [[maybe_unused]] const block_table& blocks,
                 [[maybe_unused]] std::size_t count) noexcept {
  if constexpr (State::locking_type::family::concurrent) {
    std::ranges::for_each(blocks.all().first(count), [&](block_id block) { state.pool.keep(block); });
  }
}

/// Appends the longest published prefix, `max_blocks` at most, to an empty table with room for it. It is held, until
/// `keep_prefix` or `drop_prefix`, by looks where threads are concurrent and else by references. The table is going to
/// be filled up to `num_total` blocks: where that can be foreseen to fail, nothing is changed.
template <class State>
[[nodiscard]] result<void> hold_prefix(State& state, block_table& blocks, salt tag, std::span<const token> tokens,
                                       std::size_t max_blocks, std::size_t num_total) noexcept {
  const auto room = blocks.extend(max_blocks);
  auto next = room.begin();
  match_chain(state.index, state.index.root(tag), tokens, state.block_size(), max_blocks, look(state),
              [&](block_id block) { *next++ = block; });
  blocks.withdraw(static_cast<std::size_t>(room.end() - next));
  const auto num_more = num_total - std::min(num_total, blocks.size());
  const auto num_available = num_more != 0 ? state.pool.num_available(blocks.all()) : 0;
  if (static_cast<std::int64_t>(num_more) > num_available) {
    const auto refused = state.refuse(num_more, num_available, {.shared = blocks.all()});
    if constexpr (State::locking_type::family::concurrent) {
      drop_prefix(state, blocks, blocks.size());
    }
    blocks.clear();
    return refused;
  }
  if constexpr (!State::locking_type::family::concurrent) {
    for (const auto block : blocks.all()) {
      [[maybe_unused]] const auto held = state.pool.hold(block);
      assert(held);
    }
  }
  return {};
}

/// Makes an empty sequence one of these tokens: shares the longest published prefix, leaving the last token to compute,
/// and allocates blocks for the rest.
template <class State>
[[nodiscard]] result<void> admit(State& state, sequence& s, std::span<const token> tokens,
                                 const sequence_options& options) noexcept {
  const auto num_tokens = static_cast<std::int64_t>(tokens.size());
  const auto num_blocks = state.blocks_for(num_tokens);
  const auto num_full = tokens.size() / state.block_size();
  if (options.priority > 100) {
    return error{error_code::invalid_argument, "sequence_options.priority", options.priority, 100};
  }
  if (options.retention < 0 || options.expected_tokens < 0 || options.expected_return < 0) {
    return error{error_code::invalid_argument, "sequence_options.retention, .expected_tokens or .expected_return",
                 std::min({options.retention, options.expected_tokens, options.expected_return})};
  }
  if (num_blocks > static_cast<std::size_t>(state.config.num_blocks)) {
    return state.never_fits(num_blocks);
  }
  if (!s.blocks.try_reserve(std::max(num_blocks, state.blocks_for(options.expected_tokens)))) {
    return error{error_code::out_of_memory, "number of tokens in the block table",
                 std::max(num_tokens, options.expected_tokens)};
  }
  const auto max_hits = tokens.empty() ? 0 : (tokens.size() - 1) / state.block_size();
  if (auto held = hold_prefix(state, s.blocks, options.salt, tokens, max_hits, num_blocks); !held) {
    return held;
  }
  const auto num_hits = s.blocks.size();
  const auto fresh = s.blocks.extend(num_blocks - num_hits);
  if (auto allocated = state.allocate(fresh, {.shared = s.blocks.all().first(num_hits)}); !allocated) {
    drop_prefix(state, s.blocks, num_hits);
    s.blocks.clear();
    return allocated;
  }
  keep_prefix(state, s.blocks, num_hits);

  for (auto i = num_hits; i < num_blocks; ++i) {
    const auto part = tokens.subspan(i * state.block_size());
    copy_run(part.first(std::min(part.size(), state.block_size())), state.index.tokens(s.blocks[i]));
  }
  s.num_tokens = s.num_prompt_tokens = num_tokens;
  s.num_branch_blocks = num_hits;
  s.num_computed_tokens = s.num_cached_tokens = static_cast<std::int64_t>(num_hits * state.block_size());
  s.num_published_blocks = num_hits;
  s.window_start = state.index.root(options.salt);
  s.tail = link_before(state, s, num_hits);
  s.steps = {};
  s.reuses_slots = false;
  s.options = options;
  s.created = s.last_access = state.time();
  find_room(state, s);

  state.counts.add(counter::prompts, 1);
  state.counts.add(counter::prompt_blocks, static_cast<std::int64_t>(num_full));
  state.counts.add(counter::hit_blocks, static_cast<std::int64_t>(num_hits));
  state.counts.add(counter::hit_tokens, s.num_cached_tokens);
  state.note_peak();
  return {};
}

/// Reports a sequence that `admit` has made.
template <class State>
void report_admission([[maybe_unused]] State& state, [[maybe_unused]] sequence_id id,
                      [[maybe_unused]] const sequence& s) noexcept {
  using stream = typename State::events_type;
  if constexpr (reports<stream, event_kind::hit>) {
    if (s.num_cached_tokens != 0) {
      state.events.emit({.kind = event_kind::hit,
                         .block = s.tail.block,
                         .hash = s.tail.hash,
                         .tag = s.options.salt,
                         .sequence = id,
                         .num_tokens = s.num_cached_tokens,
                         .num_blocks = static_cast<std::int64_t>(s.num_published_blocks)});
    }
  }
  if constexpr (reports<stream, event_kind::admitted>) {
    state.events.emit({.kind = event_kind::admitted,
                       .tag = s.options.salt,
                       .sequence = id,
                       .num_tokens = s.num_tokens,
                       .num_blocks = static_cast<std::int64_t>(s.blocks.size())});
  }
}

/// References every full block of a published prefix of these tokens.
template <class State>
[[nodiscard]] result<void> pin(State& state, pinned_prefix& pinned, std::span<const token> tokens, salt tag) noexcept {
  const auto max_blocks = tokens.size() / state.block_size();
  if (!pinned.blocks.try_reserve(max_blocks)) {
    return error{error_code::out_of_memory, "number of tokens to pin", static_cast<std::int64_t>(tokens.size())};
  }
  auto held = hold_prefix(state, pinned.blocks, tag, tokens, max_blocks, 0);
  keep_prefix(state, pinned.blocks, pinned.blocks.size());
  state.note_peak();
  return held;
}

template <class State>
[[nodiscard]] std::int64_t find_prefix(State& state, std::span<const token> tokens, salt tag) noexcept {
  const auto hold = look(state);
  const auto num_blocks =
      match_chain(state.index, state.index.root(tag), tokens, state.block_size(), tokens.size() / state.block_size(),
                  hold, [&](block_id block) { hold.drop(block); });
  return static_cast<std::int64_t>(num_blocks * state.block_size());
}

/// Makes an empty sequence share every block of another. Errors: `invalid_argument` while the other has tokens that are
/// not computed: their K/V would be written into shared blocks.
template <class State>
[[nodiscard]] result<void> fork(State& state, sequence& from, sequence& to) noexcept {
  if (from.num_computed_tokens != from.num_tokens) {
    return error{error_code::invalid_argument, "number of tokens to fork that are not committed",
                 from.num_tokens - from.num_computed_tokens};
  }
  const auto num_reserved = std::max(from.blocks.size(), state.blocks_for(from.options.expected_tokens));
  if (!to.blocks.try_reserve(num_reserved)) {
    return error{error_code::out_of_memory, "number of blocks to fork", static_cast<std::int64_t>(num_reserved)};
  }
  const auto held = from.blocks.held();
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (!state.pool.reference(held[i])) {
      for (; i > 0; --i) {
        state.pool.release(held[i - 1], block_release{}, 0);
      }
      return error{error_code::limit_reached, "reference count", block_state::max_count, block_state::max_count};
    }
  }
  to.blocks.copy(from.blocks);
  to.num_tokens = from.num_tokens;
  to.num_computed_tokens = from.num_computed_tokens;
  to.num_published_blocks = from.num_published_blocks;
  to.tail = from.tail;
  to.window_start = from.window_start;
  to.steps = {};
  to.reuses_slots = from.reuses_slots;
  to.options = from.options;
  to.num_prompt_tokens = from.num_prompt_tokens;
  to.num_cached_tokens = from.num_cached_tokens;
  to.num_branch_blocks = from.blocks.size();
  to.created = to.last_access = state.time();
  from.forget_room();
  to.forget_room();
  return {};
}

}  // namespace pagedkv::detail
