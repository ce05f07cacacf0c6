#pragma once

#include <pagedkv/cache/operations/append.hpp>
#include <pagedkv/cache/operations/commit.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/sequence/block_table.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

// One call for the sequences of a step: commits, appends, slots.

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
  if (num_groups != 0 && slots.size() / num_groups < num_slots) {
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

/// Whether an entry is a commit alone, which publishes nothing.
template <class State>
[[nodiscard]] bool only_commits(const State& state, const sequence_record::hot_part& hot,
                                const batch_entry& entry) noexcept {
  return entry.run.tokens.empty() && entry.run.keys.empty() && entry.num_ahead == 0 &&
         entry.num_computed_tokens != batch_entry::no_commit && only_notes(state, hot, entry.num_computed_tokens);
}

/// Commits, then appends; fills the slots.
template <class State, class Added>
[[nodiscard]] result<void> append_at_length(State& state, sequence& s, const batch_entry& entry, std::span<slot> slots,
                                            block_copier copy, Added&& added) noexcept {
  if (entry.num_computed_tokens != batch_entry::no_commit) {
    if (auto committed = commit(state, s, entry.num_computed_tokens, num_slots_of(entry) == 0); !committed) {
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

/// The block that the next commit publishes, if it is full; or `no_block`.
template <class State>
[[nodiscard]] block_id next_to_publish(const State& state, const sequence& s) noexcept {
  const auto end = (s.num_published_blocks + 1) * state.block_size();
  return end <= static_cast<std::size_t>(s.num_tokens) && s.options.publish ? s.blocks[s.num_published_blocks]
                                                                            : no_block;
}

/// Keeps the hash of the block that the next commit publishes, and fetches the lines that publishing it touches.
template <class State>
void hash_next(State& state, sequence& s) noexcept {
  const auto block = next_to_publish(state, s);
  if (block != no_block && s.num_published_blocks >= s.num_hashed_blocks && s.keys.empty() &&
      !state.pool.state(block).published()) {
    const auto hash = state.index.hash(s.tail.hash, state.index.contents(block));
    state.index.prefetch_publication(block, hash);
    state.index.note_hash(block, hash);
    s.num_hashed_blocks = s.num_published_blocks + 1;
  }
}

/// An entry that needs more than stores, and the place of its slots.
struct longer_entry {
  const batch_entry* entry;
  slot* slots;
};

/// Executes such entries of a batch that begins at `begin`, in their order. Of several, the cache lines that all touch
/// are fetched before the first one needs its own, since the processor's caches seldom have them.
template <class State>
[[gnu::noinline]] void append_longer(State& state, std::span<const longer_entry> longer, const batch_entry* begin,
                                     const batch_buffers& out, batch_outcome& done, block_copier copy) noexcept {
  if (longer.size() > 1) {
    const auto visit_each = [&](auto&& visit) {
      for (const auto& each : longer) {
        static_cast<void>(visit_sequence(state, each.entry->id, [&](sequence& s) {
          visit(s);
          return result<void>{};
        }));
      }
    };
    visit_each([&](const sequence& s) {
      if (const auto block = next_to_publish(state, s); block != no_block) {
        state.pool.prefetch(block);
        state.index.prefetch_contents(block);
      }
    });
    visit_each([&](sequence& s) { hash_next(state, s); });
  }
  for (const auto& each : longer) {
    const auto& entry = *each.entry;
    const auto slots = std::span{each.slots, num_slots_of(entry)};
    const auto number = static_cast<std::size_t>(&entry - begin);
    const auto added = [&](std::size_t index, block_id block) {
      note_block(done, out, {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(index), block});
    };
    const auto appended = visit_sequence(state, entry.id, [&](sequence& s) {
      auto outcome = append_at_length(state, s, entry, slots, copy, added);
      if (!s.has_room()) {  // an entry without tokens, or one that failed, leaves the room as it was
        find_room(state, s);
      }
      return outcome;
    });
    if (!appended) {
      std::ranges::fill(slots, skip_slot);
      out.failures[done.num_failures++] = {number, appended.error()};
    }
  }
}

/// Entries that only store are executed at once, the others a few at a time. A sequence with an entry that waits has no
/// room, so that its later entries wait, too, also those that only commit. Where several threads may be inside at once,
/// none waits: another thread could find room meanwhile. `copy`: see `make_room`.
template <class State>
[[nodiscard]] result<batch_outcome> append_batch(State& state, std::span<const batch_entry> entries,
                                                 const batch_buffers& out, block_copier copy) noexcept {
  const auto num_slots = check_room(entries, out.slots, out.failures, 1);
  if (!num_slots) {
    return num_slots.error();
  }
  auto done = batch_outcome{.num_slots = *num_slots};
  auto* next_slot = out.slots.data();
  const auto now = state.time();
  constexpr auto most_waiting = std::size_t{State::locking_type::family::concurrent ? 1 : 16};
  std::array<longer_entry, most_waiting> longer;
  auto num_longer = std::size_t{0};
  for (const auto& entry : entries) {
    const auto store = [&](sequence_record::hot_part& hot) {
      if (!only_stores(state, hot, entry)) [[unlikely]] {
        if ((num_longer == 0 || hot.has_room()) && only_commits(state, hot, entry)) {
          hot.num_computed_tokens = entry.num_computed_tokens;
          hot.last_access = now;
          return true;
        }
        if constexpr (most_waiting > 1) {
          hot.forget_room();
        }
        return false;
      }
      if (entry.num_computed_tokens != batch_entry::no_commit) {
        hot.num_computed_tokens = entry.num_computed_tokens;
      }
      ++hot.num_tokens;
      hot.last_access = now;
      *next_slot++ = state.index.slot_of(hot.next_token);
      *hot.next_token++ = entry.run.tokens[0];
      return true;
    };
    if (step_inside(state, entry.id, store)) [[likely]] {
      continue;
    }
    state.sequences.prefetch(static_cast<std::uint64_t>(entry.id));
    longer[num_longer++] = {&entry, next_slot};
    next_slot += num_slots_of(entry);
    if (num_longer == most_waiting) {  // with this one: it must not wait while an earlier one finds room
      append_longer(state, longer, entries.data(), out, done, copy);
      num_longer = 0;
    }
  }
  append_longer(state, std::span{longer}.first(num_longer), entries.data(), out, done, copy);
  return done;
}

}  // namespace pagedkv::detail
