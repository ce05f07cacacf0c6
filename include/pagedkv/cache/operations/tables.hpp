#pragma once

#include <pagedkv/backend/concept.hpp>
#include <pagedkv/cache/cache_state.hpp>
#include <pagedkv/cache/operations/append.hpp>
#include <pagedkv/cache/operations/checks.hpp>
#include <pagedkv/cache/operations/prompt.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/runs.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/sequence/batch_view.hpp>
#include <pagedkv/sequence/block_table.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

// Arrays for kernels, and what is known of one sequence.

namespace pagedkv::detail {

/// Errors: `invalid_argument` when there is too little room.
[[nodiscard]] inline result<void> copy_ids(std::span<const block_id> from, std::span<block_id> to) noexcept {
  if (to.size() < from.size()) {
    return error{error_code::invalid_argument, "room for block ids", static_cast<std::int64_t>(to.size()),
                 static_cast<std::int64_t>(from.size())};
  }
  copy_run(from, to);
  return {};
}

/// Copies a block table from the entry at `first_block` on; returns the table's size.
[[nodiscard]] inline result<std::size_t> copy_table(std::span<const block_id> table, std::span<block_id> blocks,
                                                    std::size_t first_block) noexcept {
  const auto size = table.size();
  if (first_block > size) {
    return error{error_code::invalid_argument, "first block to copy", static_cast<std::int64_t>(first_block),
                 static_cast<std::int64_t>(size)};
  }
  if (const auto copied = copy_ids(table.subspan(first_block), blocks); !copied) {
    return copied.error();
  }
  return size;
}

template <class State>
[[nodiscard]] result<std::size_t> copy_block_table(const State& state, sequence_id id, std::span<block_id> blocks,
                                                   std::size_t first_block, std::size_t group) noexcept {
  if (const auto checked = check_group(state, group); !checked) {
    return checked.error();
  }
  return visit_sequence(state, id, [&](const sequence& s) { return copy_table(s.blocks.all(), blocks, first_block); });
}

template <class State>
[[nodiscard]] result<std::size_t> copy_block_table(const State& state, pin_id id, std::span<block_id> blocks,
                                                   std::size_t first_block, std::size_t group) noexcept {
  if (const auto checked = check_group(state, group); !checked) {
    return checked.error();
  }
  return visit_record(state.pins, static_cast<std::uint64_t>(id),
                      [&](const pinned_prefix& p) { return copy_table(p.blocks.all(), blocks, first_block); });
}

/// How many tokens have slots, those ahead included: not the latter while others can see the block that they begin in.
template <class State>
[[nodiscard]] std::int64_t num_slots(const State& state, const sequence& s) noexcept {
  if (s.num_reserved <= s.num_tokens) {
    return s.num_tokens;
  }
  const bool partial = static_cast<std::size_t>(s.num_tokens) % state.block_size() != 0;
  return partial && !appends_in_place(state, s, last_block(state, s)) ? s.num_tokens : s.num_reserved;
}

/// Whether the slots of `size` tokens from `first_token` on lie below `limit`.
[[nodiscard]] inline result<void> check_slots(std::int64_t first_token, std::size_t size, std::int64_t limit) noexcept {
  return check_range(first_token, size, 0, limit, "first_token of the slot mapping",
                     "end of the slot mapping, first_token + slots.size(),");
}

/// Errors: `invalid_argument` outside the sequence and its slots ahead.
template <class State>
[[nodiscard]] result<void> slot_mapping(const State& state, const sequence& s, std::int64_t first_token,
                                        std::span<slot> slots) noexcept {
  if (auto checked = check_slots(first_token, slots.size(), num_slots(state, s)); !checked) {
    return checked;
  }
  fill_slots(s.blocks, state.config.block_size, first_token, slots);
  return {};
}

template <class State>
[[nodiscard]] result<void> slot_mapping(const State& state, sequence_id id, std::int64_t first_token,
                                        std::span<slot> slots, std::size_t group) noexcept {
  if (auto checked = check_group(state, group); !checked) {
    return checked;
  }
  return visit_sequence(state, id, [&](const sequence& s) { return slot_mapping(state, s, first_token, slots); });
}

/// Updates a batch with the row `row_of(id, sequence)` for each of these sequences, once more for as long as the
/// locking policy waits for sequences that another thread changes. Errors: `invalid_argument` for slots that cannot be
/// ahead.
template <class State, class Batch, class RowOf>
[[nodiscard]] result<void> update_rows(const State& state, Batch& batch, std::span<const sequence_id> ids,
                                       std::int32_t block_size, std::int64_t num_ahead, RowOf&& row_of) noexcept {
  if (auto checked = check_slots_ahead(num_ahead); !checked) {
    return checked;
  }
  const auto visit_row = [&](std::size_t i, auto&& use) {
    return visit_sequence(state, ids[i], [&](const auto& s) -> result<void> { return use(row_of(ids[i], s)); });
  };
  auto updated = batch.update(ids.size(), block_size, visit_row);
  while (State::locking_type::waits_for_sequence && !updated && updated.error().code == error_code::sequence_busy) {
    updated = batch.update(ids.size(), block_size, visit_row);
  }
  return updated;
}

template <class State, class Batch>
[[nodiscard]] result<void> update(const State& state, Batch& batch, std::span<const sequence_id> ids, std::size_t group,
                                  std::int64_t num_ahead) noexcept {
  if (auto checked = check_group(state, group); !checked) {
    return checked;
  }
  return update_rows(state, batch, ids, state.config.block_size, num_ahead, [&](sequence_id id, const sequence& s) {
    const auto blocks = s.blocks.all();  // without those that only have slots ahead
    const auto shown = num_ahead == 0 ? s.num_tokens : std::min(num_slots(state, s), s.num_tokens + num_ahead);
    const auto size = s.num_reserved > shown ? state.blocks_for(shown) : blocks.size();
    return batch_row{id, s.blocks.version(), shown, blocks.first(size)};
  });
}

/// Copies a sequence's tokens from `first_token` on.
template <class State>
[[nodiscard]] result<void> copy_tokens(const State& state, const sequence& s, std::int64_t first_token,
                                       std::span<token> tokens) noexcept {
  const auto dropped = static_cast<std::int64_t>(s.blocks.num_dropped() * state.block_size());
  const auto inside = check_range(first_token, tokens.size(), dropped, s.num_tokens,
                                  "first_token of the tokens to copy, outside of those held,",
                                  "end of the tokens to copy, first_token + out.size(),");
  if (!inside) {
    return inside;
  }
  for (auto at = static_cast<std::size_t>(first_token); !tokens.empty();) {
    const auto rest = state.index.tokens(s.blocks[at / state.block_size()]).subspan(at % state.block_size());
    const auto size = std::min(rest.size(), tokens.size());
    copy_run(rest.first(size), tokens);
    tokens = tokens.subspan(size);
    at += size;
  }
  return {};
}

template <class State>
[[nodiscard]] result<void> copy_tokens(const State& state, sequence_id id, std::int64_t first_token,
                                       std::span<token> tokens) noexcept {
  return visit_sequence(state, id, [&](const sequence& s) { return copy_tokens(state, s, first_token, tokens); });
}

/// Copies a sequence's keys; returns their number.
template <class State>
[[nodiscard]] result<std::size_t> copy_keys(const State& state, sequence_id id, std::span<prefix_key> keys) noexcept {
  return visit_sequence(state, id, [&](const auto& s) -> result<std::size_t> {
    copy_run(std::span{s.keys}.first(std::min(s.keys.size(), keys.size())), keys);
    return s.keys.size();
  });
}

/// Whether every slot is of a block that is in use or retiring. (Published and shared ones may be written, too, since
/// commit may come before the kernels.) Slots outside the storage are for the backend to refuse, and those that the
/// host cannot read pass.
template <class Backend, class State, class Mutex>
[[nodiscard]] bool slots_in_use(const State& state, Mutex& mutex, std::span<const slot> slots,
                                std::int32_t block_size) noexcept {
  if constexpr (reads_on_host<Backend>) {
    const auto guard = shared_guard{mutex};
    const auto nodes = state.guard_nodes();
    return std::ranges::all_of(slots, [&](slot s) {
      const auto position = static_cast<std::int64_t>(s);
      const auto block = position / block_size;
      if (position < 0 || block >= state.config.capacity()) {
        return true;
      }
      const auto found = state.pool.state(to_block(static_cast<std::size_t>(block)));
      return found.count() > 0 || found.retiring();
    });
  }
  return true;
}

template <class State>
[[nodiscard]] result<sequence_info> describe(const State& state, sequence_id id) noexcept {
  return visit_sequence(state, id, [](const auto& s) -> result<sequence_info> {
    return sequence_info{s.num_tokens,        s.num_computed_tokens, s.num_prompt_tokens,
                         s.num_cached_tokens, s.usage().num_blocks,  std::max(s.num_tokens, s.num_reserved),
                         s.created,           s.last_access,         s.options};
  });
}

}  // namespace pagedkv::detail
