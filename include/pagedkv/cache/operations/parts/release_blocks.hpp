#pragma once

#include <pagedkv/cache/cache_state.hpp>

#include <cstddef>
#include <cstdint>

namespace pagedkv::detail {

/// Ends that no time can tell are as good as never.
[[nodiscard]] constexpr timestamp retention_end(timestamp now, std::int64_t retention) noexcept {
  auto end = std::int64_t{0};
  return __builtin_add_overflow(static_cast<std::int64_t>(now), retention, &end) || retention == 0
             ? timestamp{0}
             : static_cast<timestamp>(end);
}

/// The facts about one sequence's blocks for the eviction policy.
[[nodiscard]] inline block_release release_of(const sequence& from, timestamp now, const release_hint& hint,
                                              std::size_t block_size) noexcept {
  auto how = block_release{};
  how.num_chain_blocks = static_cast<std::uint32_t>(from.num_published_blocks);
  how.num_prompt_tokens = static_cast<std::uint32_t>(from.num_prompt_tokens);
  how.num_output_tokens = static_cast<std::uint32_t>(from.num_tokens - from.num_prompt_tokens);
  how.num_cached_blocks = static_cast<std::uint32_t>(static_cast<std::size_t>(from.num_cached_tokens) / block_size);
  how.priority = from.options.priority;
  how.ended = hint.session_ended;
  how.expected_return = hint.expected_return != 0 ? hint.expected_return : from.options.expected_return;
  if (how.num_cached_blocks > from.blocks.num_dropped() && how.num_cached_blocks <= from.blocks.size()) {
    how.last_cached = from.blocks[how.num_cached_blocks - 1];
  }
  how.retain_until = retention_end(now, from.options.retention);
  return how;
}

/// Gives back one reference to the block at `index` of a chain. `fence`: see `fence_of`.
template <class State>
void release_block(State& state, block_id block, std::size_t index, block_release how, std::uint32_t fence) noexcept {
  how.hash = state.index.link(block).hash;
  how.parent = state.index.parent(block);
  how.depth = static_cast<std::uint32_t>(index);
  state.pool.release(block, how, fence);
}

/// Gives back one reference to each of the entries [first, last) of a table that these steps use, deepest first.
template <class State>
void release_blocks(State& state, const block_table& blocks, std::size_t first, std::size_t last,
                    const block_release& how, const step_set& steps) noexcept {
  if constexpr (State::locking_type::family::concurrent) {
    state.note_peak();  // allocations did not, since threads share the counts; but only releases lower them
  }
  const auto fence = state.pool.fence_of(steps);
  for (auto i = last; i > first; --i) {
    release_block(state, blocks[i - 1], i - 1, how, fence);
  }
}

}  // namespace pagedkv::detail
