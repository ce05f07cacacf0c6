#pragma once

#include <pagedkv/cache/groups/create_sequence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Gives back the references that a fork has taken so far.
template <layered State>
void undo_fork(State& state, group_sequence& to) noexcept {
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    for (const auto block : to.tables[g].all()) {
      state.pool.release(block, block_release{}, 0);
    }
    to.tables[g].clear();
  }
}

/// Makes an empty sequence share every block of another, but for reserved ones, and copies its state. Errors:
/// `invalid_argument` while the other has tokens that are not computed; `limit_reached`, `out_of_memory`, and those of
/// `refuse` and `copy`.
template <layered State>
[[nodiscard]] result<void> fork(State& state, group_sequence& from, group_sequence& to, block_copier copy) noexcept {
  if (from.num_computed_tokens != from.num_tokens) {
    return error{error_code::invalid_argument, "number of tokens to fork that are not committed",
                 from.num_tokens - from.num_computed_tokens, 0};
  }
  const auto with_state = state.group_with_state();
  const auto num_state = with_state != state.num_groups() ? state.blocks_of_state(with_state) : 0;
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    if (!to.tables[g].try_reserve(from.tables[g].all().size())) {
      return error{error_code::out_of_memory, "number of blocks to fork", from.num_tokens};
    }
    to.tables[g].clear();
  }
  to.keys.clear();
  if (!reserve_room(state, to, static_cast<std::int64_t>(state.num_pending(from))) || !reserve_keys(to, from.keys) ||
      !reserve_entries(to.hashes, from.hashes.size())) {
    return error{error_code::out_of_memory, "number of tokens to fork", from.num_tokens};
  }
  const auto guard = state.guard_nodes();
  if (const auto available = state.pool.num_available(); static_cast<std::int64_t>(num_state) > available) {
    return state.refuse(static_cast<std::int64_t>(num_state), available);
  }
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    if (!state.holds_tokens(g)) {
      continue;
    }
    to.tables[g].copy(from.tables[g]);
    to.tables[g].shrink(std::max(state.places_for(g, from.num_tokens), from.tables[g].first()));
    const auto held = to.tables[g].all();
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (!state.pool.reference(held[i])) {
        to.tables[g].withdraw(held.size() - i);
        undo_fork(state, to);
        return error{error_code::limit_reached, "reference count", block_state::max_count + 1, block_state::max_count};
      }
    }
  }
  if (with_state != state.num_groups()) {
    const auto fresh = to.tables[with_state].extend(num_state);
    state.allocate(fresh);
    to.pairs.clear();
    for (std::size_t i = 0; i < num_state; ++i) {
      to.pairs.push_back({static_cast<std::int32_t>(from.tables[with_state][i]), static_cast<std::int32_t>(fresh[i])});
    }
    if (auto copied = copy(to.pairs); !copied) {
      undo_fork(state, to);
      return copied;
    }
  }
  copy_run(from.pending.from(0).first(state.num_pending(from)), to.pending.from(0));
  add_keys(to, from.keys);
  to.hashes.assign(from.hashes.begin(), from.hashes.end());
  to.continue_as(from, state.time());
  to.first_step = state.pool.newest_open_step();
  to.tail = from.tail;
  state.hold(to.tail);
  to.branch = 0;
  to.has_copies = from.has_copies;
  note_unlaunched(state, from);
  from.forget_room();
  return {};
}

}  // namespace pagedkv::detail
