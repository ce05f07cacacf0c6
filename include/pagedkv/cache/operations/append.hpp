#pragma once

#include <pagedkv/cache/operations/parts/make_room.hpp>
#include <pagedkv/cache/operations/parts/run_facts.hpp>
#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/detail/token_runs.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

namespace pagedkv::detail {

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

}  // namespace pagedkv::detail
