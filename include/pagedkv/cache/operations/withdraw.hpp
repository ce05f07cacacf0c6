#pragma once

#include <pagedkv/cache/operations/parts/unlaunched.hpp>
#include <pagedkv/cache/operations/parts/withdraw_unlaunched.hpp>
#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pagedkv::detail {

template <class State>
[[nodiscard]] bool has_state(const State&) noexcept {
  return false;
}
template <layered State>
[[nodiscard]] bool has_state(const State& state) noexcept {
  return state.group_with_state() != state.num_groups();
}

/// Counts tokens that a launch of the newest step, if that is open, may still have to write as not computed: all of a
/// sequence that has started in that step, since it may share what another writes; full blocks as noted; and, since
/// commits inside a block are not noted, all behind the full ones. A state is of tokens inside a block, too, so it stays
/// where no full block was noted.
template <class State>
void discount_unlaunched(const State& state, sequence_record& s) noexcept {
  const auto size = state.tokens_per_node();
  auto num_full = static_cast<std::size_t>(s.num_computed_tokens) / size;
  const auto newest = state.pool.newest_open_step();
  if (newest == step_id{}) {
    return;
  }
  if (s.first_step == newest) {
    num_full = 0;
  } else if (is_unlaunched(state, s)) {
    num_full = std::min(num_full, s.first_unlaunched);
  } else if (has_state(state)) {
    return;
  }
  s.num_computed_tokens = static_cast<std::int64_t>(num_full * size);
}

/// Hides what a sequence has published ahead of a launch, unless others need the launch; returns how many blocks. Nobody
/// can share the sequence any more.
template <class State>
[[nodiscard]] result<std::int64_t> withdraw(State& state, sequence_id id) noexcept {
  return visit_sequence(state, id, [&](auto& s) -> result<std::int64_t> {
    const auto guard = state.guard_nodes();
    auto num_shared = num_unlaunched_shared(state, s);
    auto num_hidden = std::int64_t{0};
    if (num_shared == 0) {
      num_hidden = withdraw_unlaunched(state, s);
      num_shared = num_unlaunched_shared(state, s);  // another thread's hit may have been faster
    }
    if (num_shared != 0) {
      return error{error_code::in_use, "number of blocks that others share ahead of their launch", num_shared, 0};
    }
    s.options.publish = false;
    s.is_withdrawn = true;
    discount_unlaunched(state, s);
    return num_hidden;
  });
}

}  // namespace pagedkv::detail
