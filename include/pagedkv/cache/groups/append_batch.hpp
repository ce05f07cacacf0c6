#pragma once

#include <pagedkv/cache/groups/append.hpp>
#include <pagedkv/cache/groups/commit.hpp>
#include <pagedkv/cache/operations/append_batch.hpp>
#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/core/error.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/sequence/group_table.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace pagedkv {

/// Memory of the caller's that `append_batch` of a cache with groups fills, each from the start; it may be pinned.
struct group_batch_buffers {
  std::span<slot> slots = {};  // one group that holds tokens after the other; of each, for each token and each
                               // slot ahead, entry after entry; `skip_slot` where the entry failed
  std::span<batch_failure> failures = {};  // as many as there are entries
};

/// How much of the buffers was filled.
struct group_batch_outcome {
  std::size_t num_slots = 0;  // of one group
  std::size_t num_failures = 0;
};

namespace detail::groups {

/// Commits, then appends; `fill(g, first_token)` fills the slots of a group.
template <class State, class Copy, class Fill>
[[nodiscard]] result<void> append_entry(State& state, group_sequence& s, const batch_entry& entry, Copy& copy,
                                        Fill&& fill) noexcept {
  if (entry.num_computed_tokens != batch_entry::no_commit) {
    if (auto committed = commit(state, s, entry.num_computed_tokens, copy); !committed) {
      return committed;
    }
  }
  const auto first = s.num_tokens;
  if (auto extended = extend(state, s, entry.run, entry.num_ahead, copy); !extended) {
    return extended;
  }
  for (std::size_t g = 0; g < state.num_groups(); ++g) {
    if (state.holds_tokens(g)) {
      fill(g, first);
    }
  }
  return {};
}

template <class State, class Copy>
[[nodiscard]] result<group_batch_outcome> append_batch(State& state, std::span<const batch_entry> entries,
                                                       const group_batch_buffers& out, Copy&& copy) noexcept {
  const auto groups = state.config.groups.all();
  const auto num_groups = static_cast<std::size_t>(std::ranges::count_if(groups, &group_config::holds_tokens));
  const auto num_slots = check_room(entries, out.slots, out.failures, num_groups);
  if (!num_slots) {
    return num_slots.error();
  }
  auto done = group_batch_outcome{};
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto& entry = entries[i];
    const auto count = num_slots_of(entry);
    const auto appended = visit_sequence(state, entry.id, [&](group_sequence& s) {
      auto next = done.num_slots;
      return append_entry(state, s, entry, copy, [&](std::size_t g, std::int64_t first) {
        fill_slots(s.tables[g], state.plan.groups[g].block_size, first, out.slots.subspan(next, count));
        next += *num_slots;
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

}  // namespace detail::groups

}  // namespace pagedkv
