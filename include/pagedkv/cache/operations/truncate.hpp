#pragma once

#include <pagedkv/cache/operations/copy_on_write.hpp>
#include <pagedkv/cache/operations/parts/withdraw_unlaunched.hpp>
#include <pagedkv/cache/record_access.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pagedkv::detail {

/// Keeps the first `num_tokens`; whole blocks past the end are released, reserved ones included. A prompt that is cut
/// ends there. Calls `around(hide)`, which calls `hide()`, if the sequence may have published ahead of a launch: `hide`
/// hides those blocks past the end, and returns how many.
/// Errors: `invalid_argument` outside [start of the first block still held, length].
template <class State, class Around>
[[nodiscard]] result<void> truncate(State& state, sequence& s, std::int64_t num_tokens, Around&& around) noexcept {
  const auto dropped = s.blocks.num_dropped();
  const auto start = static_cast<std::int64_t>(dropped * state.block_size());
  if (num_tokens < start) {
    return error{error_code::invalid_argument, "number of tokens to keep, before those held,", num_tokens, start};
  }
  if (num_tokens > s.num_tokens) {
    return error{error_code::invalid_argument, "number of tokens to keep", num_tokens, s.num_tokens};
  }
  const auto num_full = static_cast<std::size_t>(num_tokens) / state.block_size();
  if (is_unlaunched(state, s)) {
    around([&] { return withdraw_unlaunched(state, s, num_full); });
  }
  const auto num_kept = state.blocks_for(num_tokens);
  if (num_kept < s.blocks.size()) {
    release_blocks(state, s, num_kept, s.blocks.size(), release_of(s, state.time(), {}, state.block_size()));
    s.blocks.shrink(num_kept);
  }
  if (static_cast<std::size_t>(num_tokens) % state.block_size() != 0 &&
      num_tokens < std::max(s.num_tokens, s.num_reserved)) {
    s.reuses_slots = true;
    if (const auto fence = state.pool.fence_of(s.steps); fence != 0) {
      state.pool.fence(s.blocks.back(), fence);
    }
  }
  if (num_tokens < s.num_tokens) {
    s.num_prompt_tokens = std::min(s.num_prompt_tokens, num_tokens);
    s.keys.resize(keys_between(s.keys, 0, num_tokens).size());
  }
  s.num_reserved = 0;
  s.num_tokens = num_tokens;
  s.num_computed_tokens = std::min(s.num_computed_tokens, num_tokens);
  s.num_cached_tokens = std::min(s.num_cached_tokens, num_tokens);
  s.num_hashed_blocks = std::min(s.num_hashed_blocks, num_full);
  if (num_full < s.num_published_blocks) {
    s.num_published_blocks = num_full;
    s.tail = state.link_before(s, num_full);
  }
  find_room(state, s);
  return {};
}

template <class State>
[[nodiscard]] result<void> truncate(State& state, sequence_id id, std::int64_t num_tokens) noexcept {
  return visit_sequence(state, id, [&](sequence& s) {
    return truncate(state, s, num_tokens, [](auto&& hide) { hide(); });
  });
}

}  // namespace pagedkv::detail
