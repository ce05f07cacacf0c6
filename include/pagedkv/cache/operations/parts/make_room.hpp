#pragma once

#include <pagedkv/cache/operations/copy_on_write.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pagedkv::detail {

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

}  // namespace pagedkv::detail
