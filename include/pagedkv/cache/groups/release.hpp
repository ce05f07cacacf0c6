#pragma once

#include <pagedkv/cache/groups/append.hpp>
#include <pagedkv/cache/groups/commit.hpp>
#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/cache/groups/withdraw.hpp>
#include <pagedkv/cache/operations/unlaunched.hpp>
#include <pagedkv/cache/record_map.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

// How a sequence of several groups gets shorter: at its end, altogether.

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
    attach_newest_state(state, s, hint);
    state.release_all(s.tables, state.releases_of(s, hint), state.pool.fence_of(s.steps));
    state.let_go(s.tail);
  });
}

/// The shortest length to which a sequence can be cut: every group still holds what the next token reads, and a state
/// is of exactly the computed tokens.
template <layered State>
[[nodiscard]] std::int64_t shortest_cut(const State& state, const group_sequence& s) noexcept {
  auto least = std::int64_t{0};
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    if (!state.holds_tokens(g)) {
      least = std::max(least, s.num_computed_tokens);
    } else if (const auto first = s.tables[g].first(); first > s.tables[g].num_sinks()) {
      const auto start = static_cast<std::int64_t>(first) * state.block_size(g);
      const auto window = state.group(g).window;
      const bool slides = state.group(g).kind == group_kind::window;
      least = std::max(least, slides ? start + window - 1 : (start + window - 1) / window * window);
    }
  }
  return std::min(least, s.num_tokens);
}

/// Moves the published end of a sequence up to so many nodes: its later tokens are pending again.
template <layered State>
void unpublish_to(State& state, group_sequence& s, std::int64_t num_tokens) noexcept {
  const auto size = static_cast<std::size_t>(state.granularity());
  const auto num_nodes = static_cast<std::size_t>(num_tokens) / size;
  if (num_nodes >= s.num_nodes) {
    return;
  }
  auto below = s.tail.node;
  auto node = state.nodes.parent(below);
  for (auto left = s.num_nodes - 1; left > num_nodes; --left) {
    below = node;
    node = state.nodes.parent(node);
  }
  const auto rest = state.nodes.tokens(below).first(static_cast<std::size_t>(num_tokens) % size);
  copy_run(rest, s.pending.from(0));
  const auto tail = s.tail;
  s.tail = node == no_node ? state.nodes.root(s.options.salt) : state.nodes.link(node);
  state.hold(s.tail);
  state.let_go(tail);
  s.num_nodes = num_nodes;
}

/// Keeps the first `num_tokens`; whole blocks past the end are released, reserved ones included. `around`: as
/// without groups. Errors: `invalid_argument` beyond the length, or before `shortest_cut`.
template <layered State, class Around>
[[nodiscard]] result<void> truncate(State& state, group_sequence& s, std::int64_t num_tokens,
                                    Around&& around) noexcept {
  if (const auto least = shortest_cut(state, s); num_tokens < least) {
    return error{error_code::invalid_argument, "number of tokens to keep, before those held,", num_tokens, least};
  }
  if (num_tokens > s.num_tokens) {
    return error{error_code::invalid_argument, "number of tokens to keep", num_tokens, s.num_tokens};
  }
  if (num_tokens >= std::max(s.num_tokens, s.num_reserved)) {
    return {};
  }
  const auto guard = state.guard_nodes();
  if (is_unlaunched(state, s)) {
    const auto first = static_cast<std::size_t>(num_tokens / state.granularity());
    around([&] { return withdraw_unlaunched(state, s, first); });
  }
  const auto fence = state.pool.fence_of(s.steps);
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    if (!state.holds_tokens(g)) {
      continue;
    }
    auto& table = s.tables[g];
    const auto end = std::max(state.places_for(g, num_tokens), table.first());
    state.release_from(table, g, end, state.releases_of(s), fence);
    table.shrink(end);
    if (num_tokens % state.block_size(g) != 0) {
      s.reuses_slots = true;
      if (fence != 0) {
        state.pool.fence(table[state.place_of(g, num_tokens)], fence);
      }
    }
  }
  if (num_tokens < s.num_tokens) {
    unpublish_to(state, s, num_tokens);
    s.hashes.clear();
    s.keys.resize(keys_between(s.keys, 0, num_tokens).size());
    s.num_tokens = num_tokens;
    s.num_prompt_tokens = std::min(s.num_prompt_tokens, num_tokens);
    s.num_computed_tokens = std::min(s.num_computed_tokens, num_tokens);
    s.num_cached_tokens = std::min(s.num_cached_tokens, num_tokens);
  }
  s.num_reserved = 0;
  find_room(state, s);
  return {};
}

template <layered State>
[[nodiscard]] result<void> truncate(State& state, sequence_id id, std::int64_t num_tokens) noexcept {
  return visit_sequence(state, id, [&](group_sequence& s) {
    return truncate(state, s, num_tokens, [](auto&& hide) { hide(); });
  });
}

}  // namespace pagedkv::detail
