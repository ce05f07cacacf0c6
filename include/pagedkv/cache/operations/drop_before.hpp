#pragma once

#include <pagedkv/cache/operations/parts/release_blocks.hpp>
#include <pagedkv/cache/record_access.hpp>

#include <cstddef>
#include <cstdint>

namespace pagedkv::detail {

/// Releases the blocks wholly before token `num_tokens`.
/// Errors: `invalid_argument` beyond the computed tokens: what is not computed is not published and cannot be
/// continued.
template <class State>
[[nodiscard]] result<void> drop_before(State& state, sequence& s, std::int64_t num_tokens) noexcept {
  if (num_tokens < 0 || num_tokens > s.num_computed_tokens) {
    return error{error_code::invalid_argument, "start of the window, outside of the committed tokens,", num_tokens,
                 num_tokens < 0 ? 0 : s.num_computed_tokens};
  }
  const auto last = static_cast<std::size_t>(num_tokens) / state.block_size();
  const auto first = s.blocks.num_dropped();
  if (last > first) {
    s.window_start = last <= s.num_published_blocks ? state.index.link(s.blocks[last - 1]) : s.tail;
    release_blocks(state, s, first, last, release_of(s, state.time(), {}, state.block_size()));
    s.blocks.drop_before(last);
  }
  return {};
}

template <class State>
[[nodiscard]] result<void> drop_before(State& state, sequence_id id, std::int64_t num_tokens) noexcept {
  return visit_sequence(state, id, [&](sequence& s) { return drop_before(state, s, num_tokens); });
}

}  // namespace pagedkv::detail
