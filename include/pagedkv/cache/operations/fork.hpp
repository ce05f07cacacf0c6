#pragma once

#include <pagedkv/cache/block_copier.hpp>
#include <pagedkv/cache/index_model.hpp>
#include <pagedkv/cache/operations/parts/run_facts.hpp>
#include <pagedkv/cache/operations/parts/unlaunched.hpp>
#include <pagedkv/cache/record_access.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pagedkv::detail {

/// Makes an empty sequence share every block of another, but for reserved ones. Errors: `invalid_argument` while the
/// other has tokens that are not computed: their K/V would be written into shared blocks.
template <class State>
[[nodiscard]] result<void> fork(State& state, sequence& from, sequence& to) noexcept {
  if (from.num_computed_tokens != from.num_tokens) {
    return error{error_code::invalid_argument, "number of tokens to fork that are not committed",
                 from.num_tokens - from.num_computed_tokens, 0};
  }
  const auto num_blocks = state.blocks_for(from.num_tokens);
  const auto num_reserved = std::max(num_blocks, state.blocks_expected(from.options));
  to.keys.clear();
  if (!to.blocks.try_reserve(num_reserved) || !reserve_keys(to, from.keys)) {
    return error{error_code::out_of_memory, "number of blocks to fork", static_cast<std::int64_t>(num_reserved)};
  }
  const auto held = from.blocks.held().first(num_blocks - from.blocks.num_dropped());
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (!state.pool.reference(held[i])) {
      for (; i > 0; --i) {
        state.pool.release(held[i - 1], block_release{}, 0);
      }
      return error{error_code::limit_reached, "reference count", block_state::max_count + 1, block_state::max_count};
    }
  }
  to.blocks.copy(from.blocks, num_blocks);
  add_keys(to, from.keys);
  to.continue_as(from, state.time());
  to.first_step = state.pool.newest_open_step();
  to.tail = from.tail;
  to.window_start = from.window_start;
  to.num_hashed_blocks = from.num_hashed_blocks;
  to.num_branch_blocks = num_blocks;
  note_unlaunched(state, from);
  from.forget_room();
  return {};
}

/// Makes a second sequence of the first. `copy` is for states. Errors: `in_use` where the first was withdrawn: it has
/// tokens that no launch writes.
template <class State>
[[nodiscard]] result<sequence_id> fork(State& state, sequence_id id, block_copier copy) noexcept {
  return visit_sequence(state, id, [&](auto& from) -> result<sequence_id> {
    if (from.is_withdrawn) {
      return error{error_code::in_use, "id of a sequence that gives way, to fork", static_cast<std::int64_t>(id)};
    }
    const auto made =
        make_record(state.sequences, "number of sequences, at most cache_config.max_sequences,", [&](auto& to) {
          if constexpr (layered<State>) {
            return fork(state, from, to, copy);
          } else {
            return fork(state, from, to);
          }
        });
    if (!made) {
      return made.error();
    }
    const auto forked = static_cast<sequence_id>(*made);
    report<event_kind::forked>(state.events, [&] { return cache_event{.sequence = forked, .source = id}; });
    return forked;
  });
}

}  // namespace pagedkv::detail
