#pragma once

#include <pagedkv/cache/operations/copy_on_write.hpp>
#include <pagedkv/cache/operations/parts/check_group.hpp>
#include <pagedkv/cache/operations/parts/check_range.hpp>
#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/sequence/slot_mapping.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

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

}  // namespace pagedkv::detail
