#pragma once

#include <pagedkv/cache/operations/parts/unlaunched.hpp>
#include <pagedkv/cache/operations/parts/withdraw_unlaunched.hpp>
#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

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
/// commits inside a block are not noted, all behind the full ones. Those stay with a state where no full block was
/// noted, because the state is of them, too.
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

/// Why a sequence must not give way now, if others may need its launch. Leases are counted first: each ends, or is a
/// reference before it ends.
template <class State>
[[nodiscard]] std::optional<error> refusal_to_withdraw(const State& state, const auto& s) noexcept {
  const auto num_leased = num_unlaunched_leased(state, s);
  if (const auto num_shared = num_unlaunched_shared(state, s); num_shared != 0) {
    return error{error_code::in_use, "number of blocks that others share ahead of their launch", num_shared, 0};
  }
  if (num_leased != 0) {
    return error{error_code::sequence_busy, "number of blocks that look-ups read ahead of their launch", num_leased, 0};
  }
  return std::nullopt;
}

/// Hides what a sequence has published ahead of a launch, unless others may need the launch; returns how many
/// blocks. From then on, others share none of it.
template <class State>
[[nodiscard]] result<std::int64_t> withdraw(State& state, sequence_id id) noexcept {
  return visit_sequence(state, id, [&](auto& s) -> result<std::int64_t> {
    const auto guard = state.guard_nodes();
    auto refusal = refusal_to_withdraw(state, s);
    auto num_hidden = std::int64_t{0};
    if (!refusal) {
      num_hidden = withdraw_unlaunched(state, s);
      const bool before = std::exchange(s.is_withdrawn, true);
      refusal = refusal_to_withdraw(state, s);  // another thread's hit may have been faster
      s.is_withdrawn = !refusal || before;
    }
    if (refusal) {
      return *refusal;
    }
    s.options.publish = false;
    discount_unlaunched(state, s);
    return num_hidden;
  });
}

}  // namespace pagedkv::detail
