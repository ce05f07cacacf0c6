#pragma once

#include <pagedkv/cache/block_copier.hpp>
#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/cache/operations/checks.hpp>
#include <pagedkv/cache/operations/prompt.hpp>
#include <pagedkv/detail/runs.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

// Appends to one sequence of several groups, and the copies that precede them.

namespace pagedkv::detail {

/// Whether the next token begins inside a block that must be copied first, even if no other holder has it: a hit may
/// find its slot, with `with_steps` an open step reads the slots that are written, or it was invalidated, so that no
/// hit could find the sequence's next tokens in it, and `publishes()`. `end_of(block)` is the end of the nodes in a
/// block.
template <layered State, class End, class Publishes>
[[nodiscard]] bool must_copy_own(const State& state, const group_sequence& s, std::size_t g, bool with_steps,
                                 End&& end_of, Publishes&& publishes) noexcept {
  if (s.num_tokens % state.block_size(g) == 0) {
    return false;
  }
  const auto block = s.tables[g][state.place_of(g, s.num_tokens)];
  return end_of(block) > s.num_tokens || (with_steps && s.reuses_slots && state.pool.fenced(block)) ||
         (state.pool.state(block).claimed() && publishes());
}

/// Whether it must be copied because others hold it, too.
template <layered State>
[[nodiscard]] bool must_copy_shared(const State& state, const group_sequence& s, std::size_t g) noexcept {
  return s.num_tokens % state.block_size(g) != 0 &&
         state.pool.state(s.tables[g][state.place_of(g, s.num_tokens)]).count() != 1;
}

/// Asked by a thread with the guard of the nodes.
template <layered State>
[[nodiscard]] bool must_copy_own(const State& state, const group_sequence& s, std::size_t g,
                                 bool with_steps = true) noexcept {
  return must_copy_own(
      state, s, g, with_steps, [&](block_id block) { return state.nodes.published_end(block, state.granularity()); },
      [&] { return s.options.publish && (s.tail.node == no_node || !state.nodes.is_withdrawn(s.tail.node)); });
}

/// Whether one of the two holds. Asked by a thread with the guard of the nodes.
template <layered State>
[[nodiscard]] bool must_copy(const State& state, const group_sequence& s, std::size_t g,
                             bool with_steps = true) noexcept {
  return must_copy_shared(state, s, g) || must_copy_own(state, s, g, with_steps);
}

/// Calls `visit(block)` on each block that an append would copy only because others hold it, too.
template <layered State>
void for_each_shared_end(const State& state, const group_sequence& s, auto&& visit) noexcept {
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    if (state.holds_tokens(g) && must_copy_shared(state, s, g) && !must_copy_own(state, s, g)) {
      visit(s.tables[g][state.place_of(g, s.num_tokens)]);
    }
  }
}

/// Asked by any thread inside the sequence: false is right, true may not be.
template <layered State>
[[nodiscard]] bool may_have_to_copy(const State& state, const group_sequence& s, std::size_t g) noexcept {
  return must_copy_shared(state, s, g) ||
         must_copy_own(
             state, s, g, true, [&](block_id block) { return state.nodes.highest_end(block, state.granularity()); },
             [&] { return s.options.publish; });
}

/// How many tokens have slots in a group, those ahead included: not the latter while others can see the block that they
/// begin in.
template <layered State>
[[nodiscard]] std::int64_t num_slots(const State& state, const group_sequence& s, std::size_t g) noexcept {
  if (s.num_reserved <= s.num_tokens) {
    return s.num_tokens;
  }
  if (!may_have_to_copy(state, s, g)) {
    return s.num_reserved;
  }
  const auto guard = state.guard_nodes();
  return must_copy(state, s, g) ? s.num_tokens : s.num_reserved;
}

/// Whether the tables have the blocks for so many tokens, and the next one can surely be written without a copy.
template <layered State>
[[nodiscard]] bool has_room(const State& state, const group_sequence& s, std::int64_t num_tokens) noexcept {
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    if (state.holds_tokens(g) &&
        (state.places_for(g, num_tokens) > s.tables[g].end() || may_have_to_copy(state, s, g))) {
      return false;
    }
  }
  return true;
}

/// Caches how many tokens appends may write without a look at the tables. None inside a block with nodes, which hits
/// and pins may share.
template <layered State>
void find_room(const State& state, group_sequence& s) noexcept {
  s.forget_room();
  auto end = std::numeric_limits<std::int64_t>::max();
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    if (state.holds_tokens(g)) {
      const auto is_inside = s.num_tokens % state.block_size(g) != 0;
      const auto last = is_inside ? s.tables[g][state.place_of(g, s.num_tokens)] : no_block;
      if (is_inside && (state.nodes.highest_end(last, 1) != 0 || may_have_to_copy(state, s, g))) {
        return;
      }
      end = std::min(end, static_cast<std::int64_t>(s.tables[g].end()) * state.block_size(g));
    }
  }
  const auto room = s.pending.from(state.num_pending(s));
  s.hot.next_token = room.data();
  s.hot.end_of_room = room.data() + std::min(static_cast<std::int64_t>(room.size()), end - s.num_tokens);
}

/// Brings the tables to the blocks for so many tokens, with shared blocks that are written copied by `copy(pairs)`.
template <layered State>
[[nodiscard]] result<void> make_room(State& state, group_sequence& s, std::int64_t num_tokens,
                                     block_copier copy) noexcept {
  if (has_room(state, s, num_tokens)) [[likely]] {
    return {};
  }
  const auto guard = state.guard_nodes();
  auto num_new = std::array<std::size_t, group_list::max_size>{};
  auto copies = std::array<bool, group_list::max_size>{};
  auto rewritten = std::array<block_id, group_list::max_size>{};
  auto num_rewritten = std::size_t{0};
  auto num_fresh = std::size_t{0};
  auto num_held = std::size_t{0};
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    const auto& table = s.tables[g];
    if (state.holds_tokens(g)) {
      copies[g] = must_copy(state, s, g);
      if (copies[g] && !must_copy(state, s, g, false)) {
        rewritten[num_rewritten++] = table[state.place_of(g, s.num_tokens)];
      }
      num_new[g] = std::max(state.places_for(g, num_tokens), table.end()) - table.end();
    }
    num_fresh += num_new[g] + copies[g];
    num_held += table.all().size() + num_new[g];
    if (!s.tables[g].try_reserve(table.all().size() + num_new[g])) {
      return error{error_code::out_of_memory, "number of blocks in the block tables",
                   static_cast<std::int64_t>(table.all().size() + num_new[g])};
    }
  }
  const auto needed = static_cast<std::int64_t>(num_fresh);
  if (num_held > static_cast<std::size_t>(state.pool.size())) {
    return state.refuse(static_cast<std::int64_t>(num_held), state.pool.num_available());
  }
  if (const auto available = state.pool.num_available(); needed > available) {
    return state.refuse(needed, available, {.rewritten = std::span{rewritten}.first(num_rewritten)});
  }
  auto targets = std::array<block_id, group_list::max_size>{};
  s.pairs.clear();
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    state.allocate(s.tables[g].extend(num_new[g]));
    if (copies[g]) {
      state.allocate({&targets[g], 1});
      const auto source = s.tables[g][state.place_of(g, s.num_tokens)];
      s.pairs.push_back({static_cast<std::int32_t>(source), static_cast<std::int32_t>(targets[g])});
    }
  }
  if (!s.pairs.empty()) {
    if (auto copied = copy(s.pairs); !copied) {
      for (std::size_t g = 0; g < state.num_groups(); ++g) {
        state.pool.discard(s.tables[g].last(num_new[g]));
        s.tables[g].withdraw(num_new[g]);
        if (copies[g]) {
          state.pool.discard({&targets[g], 1});
        }
      }
      return copied;
    }
  }
  const auto fence = state.pool.fence_of(s.steps);
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    if (copies[g]) {
      const auto place = state.place_of(g, s.num_tokens);
      const auto shared = s.tables[g][place];
      s.tables[g].replace(place, targets[g]);
      s.has_copies = true;
      state.release_replaced(s, g, place, shared, fence);
      count<&cache_statistics::copies>(state.counts, 1);
      report<event_kind::copied>(state.events, [&] { return cache_event{.block = targets[g], .origin = shared}; });
    }
  }
  return {};
}

/// Keeps the hashes that a caller told of runs which are full now, until they are published.
template <layered State>
void note_hashes(const State& state, group_sequence& s, std::span<const std::uint64_t> hashes) noexcept {
  const auto num_full = static_cast<std::size_t>(s.num_tokens / state.granularity());
  for (auto i = s.num_nodes + s.hashes.size(); i < std::min(num_full, hashes.size()); ++i) {
    s.hashes.push_back(hashes[i]);
  }
}

/// Appends tokens, and reserves slots for `num_ahead` more: all or nothing.
template <layered State>
[[nodiscard]] [[gnu::noinline]] result<void> extend(State& state, group_sequence& s, const token_run& run,
                                                    std::int64_t num_ahead, block_copier copy) noexcept {
  const auto tokens = run.tokens;
  if (auto checked = check_slots_ahead(num_ahead); !checked) {
    return checked;
  }
  const auto num_tokens = s.num_tokens + static_cast<std::int64_t>(tokens.size());
  if (auto checked = check_keys(run.keys, s, num_tokens); !checked) {
    return checked;
  }
  if (tokens.empty() && num_ahead == 0) {
    s.last_access = state.time();
    return {};
  }
  const auto num_pending = state.num_pending(s);
  s.forget_room();  // the pending tokens may move
  if (!s.pending.try_reserve(num_pending, num_pending + tokens.size()) || !reserve_keys(s, run.keys) ||
      !reserve_entries(s.hashes, run.hashes.size())) {
    return error{error_code::out_of_memory, "number of tokens", s.num_tokens};
  }
  if (auto made = make_room(state, s, num_tokens + num_ahead, copy); !made) {
    return made;
  }
  copy_run(tokens, s.pending.from(num_pending));
  add_keys(s, run.keys);
  s.num_tokens = num_tokens;
  note_hashes(state, s, run.hashes);
  if (num_ahead != 0) {
    s.num_reserved = std::max(s.num_reserved, num_tokens + num_ahead);
  }
  s.reuses_slots = false;
  find_room(state, s);
  s.last_access = state.time();
  return {};
}

}  // namespace pagedkv::detail
