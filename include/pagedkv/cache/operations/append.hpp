#pragma once

#include <pagedkv/cache/block_copier.hpp>
#include <pagedkv/cache/operations/commit.hpp>
#include <pagedkv/cache/operations/parts.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/detail/runs.hpp>
#include <pagedkv/sequence/block_table.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

namespace pagedkv::detail {

/// The block with the end of a sequence, which is not full. Later blocks of the table are reserved.
template <class State>
[[nodiscard]] block_id last_block(const State& state, const sequence& s) noexcept {
  return s.blocks[static_cast<std::size_t>(s.num_tokens) / state.block_size()];
}

/// The decision of copy on write: an append fills the last block without a copy if one sequence holds the block, no
/// prefix hit can find it, and no open step reads the slots that would be written.
template <class State>
[[nodiscard]] bool appends_in_place(const State& state, const sequence& s, block_id last) noexcept {
  return state.pool.writable(last) && !(s.reuses_slots && state.pool.fenced(last));
}

/// Calls `visit(block)` on the last block if an append would copy it only because others hold it, too.
template <class State>
void for_each_shared_end(const State& state, const sequence& s, auto&& visit) noexcept {
  if (static_cast<std::size_t>(s.num_tokens) % state.block_size() != 0) {
    const auto last = last_block(state, s);
    if (const auto seen = state.pool.state(last);
        seen.count() > 1 && !seen.published() && !(s.reuses_slots && state.pool.fenced(last))) {
      visit(last);
    }
  }
}

/// Caches the part of the last block, or of the first reserved one, that appends may fill without a copy.
template <class State>
void find_room(State& state, sequence& s) noexcept {
  const auto index = static_cast<std::size_t>(s.num_tokens) / state.block_size();
  const auto offset = static_cast<std::size_t>(s.num_tokens) % state.block_size();
  s.forget_room();
  if (index < s.blocks.size() && (offset == 0 || appends_in_place(state, s, s.blocks[index]))) {
    const auto room = state.index.tokens(s.blocks[index]).subspan(offset);
    s.hot.next_token = room.data();
    s.hot.end_of_room = room.data() + room.size();
    s.reuses_slots = s.reuses_slots && offset != 0;  // no token was in a reserved block
  }
}

/// Replaces the last block by a copy: K/V through `copy(pairs)`, tokens here. `fresh` is in use once.
template <class State>
[[nodiscard]] result<void> copy_last_block(State& state, sequence& s, block_id fresh, block_copier copy) noexcept {
  const auto index = static_cast<std::size_t>(s.num_tokens) / state.block_size();
  const auto shared = s.blocks[index];
  const auto pair = block_pair{static_cast<std::int32_t>(shared), static_cast<std::int32_t>(fresh)};
  if (auto copied = copy({&pair, 1}); !copied) {
    return copied;
  }
  const auto offset = static_cast<std::size_t>(s.num_tokens) % state.block_size();
  const auto source = state.index.tokens(shared);
  copy_run(source.first(offset), state.index.tokens(fresh));
  s.blocks.replace(index, fresh);
  if constexpr (State::locking_type::family::concurrent) {
    state.note_peak();  // see `release_blocks`
  }
  auto how = release_of(s, state.time(), {}, state.block_size());
  apply_ranges(how, s, index, state.block_size(), state.time());
  release_block(state, shared, index, how, state.pool.fence_of(s.steps));
  count<&cache_statistics::copies>(state.counts, 1);
  report<event_kind::copied>(state.events, [&] { return cache_event{.block = fresh, .origin = shared}; });
  return {};
}

/// Brings a table to the blocks for so many tokens, those behind the last token writable: all or nothing. If others can
/// see the last block, `copy(pairs)` copies it first. (When that copy fails in the backend, blocks that were evicted
/// to make room stay evicted; nothing else has changed.)
template <class State>
[[nodiscard]] result<void> make_room(State& state, sequence& s, std::int64_t num_tokens, block_copier copy) noexcept {
  const auto size = s.blocks.size();
  const bool partial = static_cast<std::size_t>(s.num_tokens) % state.block_size() != 0;
  const bool must_copy = partial && !appends_in_place(state, s, last_block(state, s));
  const auto total = std::max(size, state.blocks_for(num_tokens));
  const auto num_fresh = total - size + (must_copy ? 1 : 0);
  const auto num_held = total - s.blocks.num_dropped();
  if (num_held > static_cast<std::size_t>(state.pool.size())) {
    return state.never_fits(num_held);
  }
  if (!s.blocks.try_reserve(size + num_fresh)) {
    return error{error_code::out_of_memory, "number of blocks in the block table",
                 static_cast<std::int64_t>(size + num_fresh)};
  }
  const auto last = must_copy ? last_block(state, s) : no_block;
  const auto num_rewritten = must_copy && state.pool.writable(last) ? std::size_t{1} : std::size_t{0};
  auto fresh = s.blocks.extend(num_fresh);
  if (auto allocated = state.allocate(fresh, {.rewritten = {&last, num_rewritten}}); !allocated) {
    s.blocks.withdraw(num_fresh);
    return allocated;
  }
  if (must_copy) {
    const auto replacement = fresh.back();
    if (auto copied = copy_last_block(state, s, replacement, copy); !copied) {
      state.pool.discard(fresh);
      s.blocks.withdraw(num_fresh);
      return copied;
    }
    s.blocks.withdraw(1);
    s.reuses_slots = false;
  }
  return {};
}

/// Writes tokens behind the last one; blocks for them are in the table and writable.
template <class State>
void store_tokens(State& state, sequence& s, std::span<const token> tokens) noexcept {
  while (!tokens.empty()) {
    const auto position = static_cast<std::size_t>(s.num_tokens);
    const auto offset = position % state.block_size();
    const auto run = tokens.first(std::min(tokens.size(), state.block_size() - offset));
    copy_tokens(run, state.index.tokens(s.blocks[position / state.block_size()]).subspan(offset));
    s.num_tokens += static_cast<std::int64_t>(run.size());
    tokens = tokens.subspan(run.size());
  }
}

/// Appends a run of tokens, and reserves slots for `num_ahead` more: all or nothing. `copy`: see `make_room`.
template <class State>
[[nodiscard]] [[gnu::noinline]] result<void> extend(State& state, sequence& s, const token_run& run,
                                                    std::int64_t num_ahead, block_copier copy) noexcept {
  if (auto checked = check_slots_ahead(num_ahead); !checked) {
    return checked;
  }
  const auto num_tokens = s.num_tokens + static_cast<std::int64_t>(run.tokens.size());
  if (auto checked = check_keys(run.keys, s, num_tokens); !checked) {
    return checked;
  }
  if (run.tokens.empty() && num_ahead == 0) {
    s.last_access = state.time();
    return {};
  }
  if (!reserve_keys(s, run.keys)) {
    return error{error_code::out_of_memory, "number of keys", static_cast<std::int64_t>(run.keys.size())};
  }
  if (auto made = make_room(state, s, num_tokens + num_ahead, copy); !made) {
    return made;
  }
  if (s.reuses_slots && state.blocks_for(num_tokens) != state.blocks_for(s.num_tokens)) {
    s.reuses_slots = false;
  }
  store_tokens(state, s, run.tokens);
  add_keys(s, run.keys);
  note_hashes(state, s, run.hashes);
  if (num_ahead != 0) {
    s.num_reserved = std::max(s.num_reserved, num_tokens + num_ahead);
  }
  find_room(state, s);
  s.last_access = state.time();
  return {};
}

/// Appends a run of tokens without keys or hashes if the last block has room for it. False, and nothing is changed, if
/// an append needs more.
template <class State>
[[nodiscard]] [[gnu::always_inline]] inline bool append_inside(State& state, sequence_id id,
                                                               const token_run& run) noexcept {
  return step_inside(state, id, [&](sequence_record::hot_part& hot) {
    const auto size = std::ssize(run.tokens);
    if (size > hot.end_of_room - hot.next_token || size == 0 || !run.tokens_only()) {
      return false;
    }
    hot.last_access = state.time();
    hot.next_token = std::copy(run.tokens.begin(), run.tokens.end(), hot.next_token);
    hot.num_tokens += size;
    return true;
  });
}
template <class State>
[[nodiscard]] [[gnu::always_inline]] inline bool append_inside(State& state, sequence_id id, token next) noexcept {
  return step_inside(state, id, [&](sequence_record::hot_part& hot) {
    if (!hot.has_room()) [[unlikely]] {
      return false;
    }
    hot.last_access = state.time();
    *hot.next_token++ = next;
    ++hot.num_tokens;
    return true;
  });
}

template <class State>
[[nodiscard]] result<void> reserve_slots(State& state, sequence_id id, std::int64_t num_ahead,
                                         block_copier copy) noexcept {
  return visit_sequence(state, id, [&](auto& s) { return extend(state, s, {}, num_ahead, copy); });
}

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
/// room, so that its later entries wait, too. Where several threads may be inside at once, none waits: another thread
/// could find room meanwhile. `copy`: see `make_room`.
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
        if (only_commits(state, hot, entry)) {
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
