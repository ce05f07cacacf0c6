#pragma once

#include <pagedkv/cache/operations/copy_on_write.hpp>
#include <pagedkv/detail/copy_run.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Writes tokens behind the last one; blocks for them are in the table and writable.
template <class State>
void store_tokens(State& state, sequence& s, std::span<const token> tokens) noexcept {
  while (!tokens.empty()) {
    const auto position = static_cast<std::size_t>(s.num_tokens);
    const auto offset = position % state.block_size();
    const auto run = tokens.first(std::min(tokens.size(), state.block_size() - offset));
    copy_run(run, state.index.tokens(s.blocks[position / state.block_size()]).subspan(offset));
    s.num_tokens += static_cast<std::int64_t>(run.size());
    tokens = tokens.subspan(run.size());
  }
}

/// Appends a run of tokens: all or nothing. The last block is copied first if others can see it. (When that copy fails
/// in the backend, blocks that were evicted to make room stay evicted; nothing else has changed.)
template <class State, class Copy>
[[nodiscard]] result<void> append(State& state, sequence& s, std::span<const token> tokens, Copy&& copy) noexcept {
  if (tokens.empty()) {
    return {};
  }
  const auto size = s.blocks.size();
  const bool partial = static_cast<std::size_t>(s.num_tokens) % state.block_size() != 0;
  const bool must_copy = partial && !appends_in_place(state, s);
  const auto total = state.blocks_for(s.num_tokens + static_cast<std::int64_t>(tokens.size()));
  const auto num_fresh = total - size + (must_copy ? 1 : 0);
  const auto num_held = total - s.blocks.num_dropped();
  if (num_held > static_cast<std::size_t>(state.config.num_blocks)) {
    return state.never_fits(num_held);
  }
  if (!s.blocks.try_reserve(size + num_fresh)) {
    return error{error_code::out_of_memory, "number of blocks in the block table",
                 static_cast<std::int64_t>(size + num_fresh)};
  }
  const auto rewritten = must_copy && state.pool.writable(s.blocks.back()) ? s.blocks.back() : no_block;
  auto fresh = s.blocks.extend(num_fresh);
  if (auto allocated = state.allocate(fresh, {.rewritten = rewritten}); !allocated) {
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
  }
  s.reuses_slots = s.reuses_slots && num_fresh == 0;
  store_tokens(state, s, tokens);
  find_room(state, s);
  return {};
}

}  // namespace pagedkv::detail
