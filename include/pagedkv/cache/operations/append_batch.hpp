#pragma once

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

namespace pagedkv {

/// One sequence's part in `append_batch`. A sequence may have several.
struct batch_entry {
  static constexpr auto no_commit = std::int64_t{-1};

  sequence_id id{};
  token_run run = {};                            // to append; may be empty
  std::int64_t num_computed_tokens = no_commit;  // to commit, before the run is appended
  std::int64_t num_ahead = 0;                    // slots to reserve behind the run
};

/// An entry that failed, and why.
struct batch_failure {
  std::size_t entry = 0;
  error reason;
};

/// An entry of a block table that is new: a block that was added, or that replaces one which others can see.
struct new_block {
  std::uint32_t entry = 0;  // of the batch
  std::uint32_t index = 0;  // in the block table
  block_id block{};
  std::uint32_t group = 0;
};

/// Memory of the caller's that `append_batch` fills, each from the start; it may be pinned.
struct batch_buffers {
  std::span<slot> slots = {};              // for each token and each slot ahead, entry after entry; `skip_slot` where
                                           // the entry failed; one group that holds tokens after the other
  std::span<batch_failure> failures = {};  // as many as there are entries
  std::span<new_block> new_blocks = {};    // in the order of entries; those that do not fit are only counted
};

/// How much of the buffers was filled.
struct batch_outcome {
  std::size_t num_slots = 0;  // of one group
  std::size_t num_failures = 0;
  std::size_t num_new_blocks = 0;  // counts also those that did not fit into the buffer
};

namespace detail {

/// How many slots an entry needs: for its tokens, and ahead of them unless `num_ahead` is negative.
[[nodiscard]] inline std::size_t num_slots_of(const batch_entry& entry) noexcept {
  return entry.run.tokens.size() + static_cast<std::size_t>(std::max(entry.num_ahead, std::int64_t{0}));
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

/// Whether an entry is one token without a key behind the last, in a block where that is a store, and its commit fills
/// no block.
template <class State>
[[nodiscard]] bool only_stores(const State& state, const sequence& s, const batch_entry& entry) noexcept {
  const auto num_computed = entry.num_computed_tokens;
  const auto published_next = static_cast<std::int64_t>((s.num_published_blocks + 1) * state.block_size());
  return entry.run.tokens.size() == 1 && entry.run.keys.empty() && s.has_room() && entry.num_ahead == 0 &&
         (num_computed == batch_entry::no_commit ||
          (s.num_computed_tokens <= num_computed && num_computed <= s.num_tokens &&
           (num_computed < published_next || !s.options.publish)));
}

/// Commits, then appends by `extend(s, run, num_ahead)`; fills the slots.
template <class State, class Extend, class Added>
[[nodiscard]] [[gnu::noinline]] result<void> append_at_length(State& state, sequence& s, const batch_entry& entry,
                                                              std::span<slot> slots, Extend&& extend,
                                                              Added&& added) noexcept {
  if (entry.num_computed_tokens != batch_entry::no_commit) {
    if (auto committed = commit(state, s, entry.num_computed_tokens); !committed) {
      return committed;
    }
  }
  const auto first = s.num_tokens;
  auto appended = watch_table(
      state, s, [&] { return extend(s, entry.run, entry.num_ahead); }, added);
  if (appended) {
    fill_slots(s.blocks, state.config.block_size, first, slots);
  }
  return appended;
}

/// `copy`: see `make_room`.
template <class State, class Copy>
[[nodiscard]] result<batch_outcome> append_batch(State& state, std::span<const batch_entry> entries,
                                                 const batch_buffers& out, Copy&& copy) noexcept {
  const auto extend_by = [&](sequence& s, const token_run& run, std::int64_t num_ahead) {
    return extend(state, s, run, num_ahead, copy);
  };
  const auto num_slots = check_room(entries, out.slots, out.failures, 1);
  if (!num_slots) {
    return num_slots.error();
  }
  auto done = batch_outcome{};
  const auto now = state.time();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto& entry = entries[i];
    const auto slots = out.slots.subspan(done.num_slots, num_slots_of(entry));
    const auto appended = visit_sequence(state, entry.id, [&](sequence& s) -> result<void> {
      if (!only_stores(state, s, entry)) [[unlikely]] {
        return append_at_length(state, s, entry, slots, extend_by, [&](std::size_t index, block_id block) {
          note_block(done, out, {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(index), block});
        });
      }
      slots[0] = state.index.slot_of(s.next_token);
      *s.next_token++ = entry.run.tokens[0];
      s.num_computed_tokens = std::max(s.num_computed_tokens, entry.num_computed_tokens);
      ++s.num_tokens;
      s.last_access = now;
      return {};
    });
    if (!appended) [[unlikely]] {
      std::fill(slots.begin(), slots.end(), skip_slot);
      out.failures[done.num_failures++] = {i, appended.error()};
    }
    done.num_slots += slots.size();
  }
  return done;
}

}  // namespace detail

}  // namespace pagedkv
