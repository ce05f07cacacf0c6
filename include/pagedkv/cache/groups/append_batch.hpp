#pragma once

#include <pagedkv/cache/groups/append.hpp>
#include <pagedkv/cache/groups/commit.hpp>
#include <pagedkv/cache/operations/append_batch.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/sequence/group_table.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

// One call for the sequences of a step, with several groups: commits, appends, slots.

namespace pagedkv::detail {

/// Calls `added(g, index, block)` for each entry of the tables that `change()` makes behind the last token.
template <layered State, class Change, class Added>
[[nodiscard]] result<void> watch_tables(const State& state, const group_sequence& s, Change&& change,
                                        Added&& added) noexcept {
  auto ends = std::array<std::size_t, group_list::max_size>{};
  auto writable = std::array<block_id, group_list::max_size>{};
  const auto last_of = [&, length = s.num_tokens](std::size_t g) { return state.place_of(g, length); };
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    ends[g] = s.tables[g].end();
    writable[g] = state.holds_tokens(g) && last_of(g) < ends[g] ? s.tables[g][last_of(g)] : no_block;
  }
  auto changed = change();
  for (std::size_t g = 0; changed && g < state.num_groups(); ++g) {
    const auto& table = s.tables[g];
    for (auto i = state.holds_tokens(g) ? last_of(g) : table.end(); i < table.end(); ++i) {
      if (i >= ends[g] || (i == last_of(g) && table[i] != writable[g])) {
        added(g, i - table.num_skipped(), table[i]);
      }
    }
  }
  return changed;
}

/// Commits, then appends; `fill(g, first_token)` fills the slots of a group.
template <layered State, class Fill, class Added>
[[nodiscard]] result<void> append_entry(State& state, group_sequence& s, const batch_entry& entry, block_copier copy,
                                        Fill&& fill, Added&& added) noexcept {
  if (entry.num_computed_tokens != batch_entry::no_commit) {
    const bool ahead = num_slots_of(entry) == 0;
    if (auto committed = commit(state, s, entry.num_computed_tokens, copy, ahead); !committed) {
      return committed;
    }
  }
  const auto first = s.num_tokens;
  auto extended = watch_tables(state, s, [&] { return extend(state, s, entry.run, entry.num_ahead, copy); }, added);
  if (!extended) {
    return extended;
  }
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    if (state.holds_tokens(g)) {
      fill(g, first);
    }
  }
  return {};
}

template <layered State>
[[nodiscard]] result<batch_outcome> append_batch(State& state, std::span<const batch_entry> entries,
                                                 const batch_buffers& out, block_copier copy) noexcept {
  const auto groups = state.config.groups.all();
  const auto num_groups = static_cast<std::size_t>(std::ranges::count_if(groups, &group_config::holds_tokens));
  const auto num_slots = check_room(entries, out.slots, out.failures, num_groups);
  if (!num_slots) {
    return num_slots.error();
  }
  auto done = batch_outcome{.num_groups = num_groups};
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto& entry = entries[i];
    const auto count = num_slots_of(entry);
    const auto appended = visit_sequence(state, entry.id, [&](group_sequence& s) {
      auto next = done.num_slots;
      const auto fill = [&](std::size_t g, std::int64_t first) {
        fill_slots(s.tables[g], state.plan.groups[g].block_size, first, out.slots.subspan(next, count));
        next += *num_slots;
      };
      return append_entry(state, s, entry, copy, fill, [&](std::size_t g, std::size_t index, block_id block) {
        note_block(
            done, out,
            {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(index), block, static_cast<std::uint32_t>(g)});
      });
    });
    if (!appended) {
      for (std::size_t g = 0; g < num_groups; ++g) {
        std::ranges::fill(out.slots.subspan(g * *num_slots + done.num_slots, count), skip_slot);
      }
      out.failures[done.num_failures++] = {i, appended.error()};
    }
    done.num_slots += count;
  }
  return done;
}

}  // namespace pagedkv::detail
