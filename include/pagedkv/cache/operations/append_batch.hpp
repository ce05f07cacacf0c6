#pragma once

#include <pagedkv/cache/batch.hpp>
#include <pagedkv/cache/operations/append.hpp>
#include <pagedkv/cache/operations/commit.hpp>
#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/core/error.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/sequence/slot_mapping.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace pagedkv::detail {

/// The number of slots in a batch, with room for as many of each group, and for failures. Errors: `invalid_argument`.
[[nodiscard]] inline result<std::size_t> check_room(std::span<const batch_entry> entries, std::span<const slot> slots,
                                                    std::span<const batch_failure> failures,
                                                    std::size_t num_groups) noexcept {
  constexpr auto most_ahead = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  auto num_slots = std::size_t{0};
  for (const auto& entry : entries) {
    if (entry.num_ahead > most_ahead) {  // before the sum can wrap
      return error{error_code::invalid_argument, "number of slots ahead in a batch", entry.num_ahead, most_ahead};
    }
    num_slots += num_slots_of(entry);
  }
  if (slots.size() / num_groups < num_slots) {
    return error{error_code::invalid_argument, "room for slots of a batch", static_cast<std::int64_t>(slots.size()),
                 static_cast<std::int64_t>(num_slots * num_groups)};
  }
  if (failures.size() < entries.size()) {
    return error{error_code::invalid_argument, "room for failures of a batch",
                 static_cast<std::int64_t>(failures.size()), static_cast<std::int64_t>(entries.size())};
  }
  return num_slots;
}

inline void note_block(batch_outcome& done, const batch_buffers& out, const new_block& added) noexcept {
  if (done.num_new_blocks < out.new_blocks.size()) {
    out.new_blocks[done.num_new_blocks] = added;
  }
  ++done.num_new_blocks;
}

/// Calls `added(index, block)` for each entry of the table that `change()` makes.
template <class State, class Change, class Added>
[[nodiscard]] result<void> watch_table(const State& state, const sequence& s, Change&& change, Added&& added) noexcept {
  const auto size = s.blocks.size();
  const auto last = static_cast<std::size_t>(s.num_tokens) / state.block_size();
  const auto writable = last < size ? s.blocks[last] : no_block;
  auto changed = change();
  if (changed) {
    for (auto i = last; i < s.blocks.size(); ++i) {
      if (i >= size || (i == last && s.blocks[i] != writable)) {
        added(i, s.blocks[i]);
      }
    }
  }
  return changed;
}

/// Whether an entry is one token without a key behind the last, in a block where that is a store, and its commit
/// publishes nothing. A token that fills its block brings the block's hash, if hashes are told.
template <class State>
[[nodiscard]] bool only_stores(const State& state, const sequence_record::hot_part& hot,
                               const batch_entry& entry) noexcept {
  const auto num_computed = entry.num_computed_tokens;
  return entry.run.tokens.size() == 1 && entry.run.keys.empty() && hot.has_room() && entry.num_ahead == 0 &&
         (entry.run.hashes.empty() || hot.end_of_room - hot.next_token > 1) &&
         (num_computed == batch_entry::no_commit || only_notes(state, hot, num_computed));
}

/// Commits, then appends; fills the slots.
template <class State, class Added>
[[nodiscard]] [[gnu::noinline]] result<void> append_at_length(State& state, sequence& s, const batch_entry& entry,
                                                              std::span<slot> slots, block_copier copy,
                                                              Added&& added) noexcept {
  if (entry.num_computed_tokens != batch_entry::no_commit) {
    if (auto committed = commit(state, s, entry.num_computed_tokens); !committed) {
      return committed;
    }
  }
  const auto first = s.num_tokens;
  auto appended = watch_table(state, s, [&] { return extend(state, s, entry.run, entry.num_ahead, copy); }, added);
  if (appended) {
    fill_slots(s.blocks, state.config.block_size, first, slots);
  }
  return appended;
}

/// `copy`: see `make_room`.
template <class State>
[[nodiscard]] result<batch_outcome> append_batch(State& state, std::span<const batch_entry> entries,
                                                 const batch_buffers& out, block_copier copy) noexcept {
  const auto num_slots = check_room(entries, out.slots, out.failures, 1);
  if (!num_slots) {
    return num_slots.error();
  }
  auto done = batch_outcome{};
  const auto now = state.time();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto& entry = entries[i];
    const auto slots = out.slots.subspan(done.num_slots, num_slots_of(entry));
    const auto store = [&](sequence_record::hot_part& hot) {
      if (!only_stores(state, hot, entry)) [[unlikely]] {
        return false;
      }
      slots[0] = state.index.slot_of(hot.next_token);
      *hot.next_token++ = entry.run.tokens[0];
      hot.num_computed_tokens = std::max(hot.num_computed_tokens, entry.num_computed_tokens);
      ++hot.num_tokens;
      hot.last_access = now;
      return true;
    };
    const auto appended = visit_sequence(state, entry.id, store, [&](sequence& s) {
      return append_at_length(state, s, entry, slots, copy, [&](std::size_t index, block_id block) {
        note_block(done, out, {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(index), block});
      });
    });
    if (!appended) [[unlikely]] {
      std::fill(slots.begin(), slots.end(), skip_slot);
      out.failures[done.num_failures++] = {i, appended.error()};
    }
    done.num_slots += slots.size();
  }
  return done;
}

}  // namespace pagedkv::detail
