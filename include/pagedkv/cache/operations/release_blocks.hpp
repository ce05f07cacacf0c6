#pragma once

#include <pagedkv/cache/cache_state.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

// How blocks of a sequence leave it: the facts for the eviction policy, and the release itself.

namespace pagedkv::detail {

/// Ends that no time can tell are as good as never.
[[nodiscard]] constexpr timestamp retention_end(timestamp now, std::int64_t retention) noexcept {
  auto end = std::int64_t{0};
  return __builtin_add_overflow(static_cast<std::int64_t>(now), retention, &end) || retention == 0
             ? timestamp{0}
             : static_cast<timestamp>(end);
}

/// The facts about one sequence's blocks, or nodes, for the eviction policy.
[[nodiscard]] inline block_release release_of(const sequence_record& from, timestamp now,
                                              const release_hint& hint) noexcept {
  auto how = block_release{};
  how.num_chain_blocks = static_cast<std::uint32_t>(from.hot.num_published);
  how.num_prompt_tokens = static_cast<std::uint32_t>(from.num_prompt_tokens);
  const auto num_output = std::max(from.num_tokens - from.num_prompt_tokens, std::int64_t{0});
  how.num_output_tokens = static_cast<std::uint32_t>(num_output);
  how.priority = from.options.priority;
  how.ended = hint.session_ended;
  how.expected_return = hint.expected_return != 0 ? hint.expected_return : from.options.expected_return;
  how.retain_until = retention_end(now, from.options.retention);
  how.released_at = now;
  return how;
}
[[nodiscard]] inline block_release release_of(const sequence& from, timestamp now, const release_hint& hint,
                                              std::size_t block_size) noexcept {
  auto how = release_of(from, now, hint);
  how.num_cached_blocks = static_cast<std::uint32_t>(static_cast<std::size_t>(from.num_cached_tokens) / block_size);
  if (how.num_cached_blocks > from.blocks.num_dropped() && how.num_cached_blocks <= from.blocks.size()) {
    how.last_cached = from.blocks[how.num_cached_blocks - 1];
  }
  return how;
}

/// The facts about blocks that no sequence releases: a pin ends, or an operation is undone.
[[nodiscard]] inline block_release release_as_before(timestamp now) noexcept {
  return {.as_before = true, .released_at = now};
}

/// Whether ranges are given, also wrong ones.
[[nodiscard]] inline bool has_ranges(const sequence_options& options) noexcept {
  auto ends = std::int64_t{0};
  for (const auto& range : options.ranges) {
    ends |= range.first | range.last;
  }
  return ends != 0 || options.answer.has_value();
}

/// The priority and the retention of the ranges that the block at `index` has tokens of.
template <class Sequence>
[[nodiscard]] block_retention retention_of(const Sequence& from, std::size_t index, std::size_t block_size) noexcept {
  const auto start = static_cast<std::int64_t>(index * block_size);
  const auto end = start + static_cast<std::int64_t>(block_size);
  const auto longer = [](std::int64_t a, std::int64_t b) { return b != 0 && (a == 0 || a > b); };
  auto best = std::optional<block_retention>{};
  const auto consider = [&](std::int64_t first, std::int64_t last, const block_retention& given) {
    if (first < last && first < end && start < last &&
        (!best || given.priority > best->priority ||
         (given.priority == best->priority && longer(given.duration, best->duration)))) {
      best = given;
    }
  };
  for (const auto& [first, last, given] : from.options.ranges) {
    consider(first, last, given);
  }
  if (from.options.answer) {
    consider(from.num_prompt_tokens, sequence_options::no_limit, *from.options.answer);
  }
  return best.value_or(block_retention{from.options.priority, from.options.retention});
}

/// Gives the block at `index` what `retention_of` tells. Inlined: the address of `how` is taken nowhere then, so that
/// facts which the eviction policy does not read are not computed.
template <class Sequence>
[[gnu::always_inline]] inline void apply_ranges(block_release& how, const Sequence& from, std::size_t index,
                                                std::size_t block_size, timestamp now) noexcept {
  const auto given = retention_of(from, index, block_size);
  how.priority = given.priority;
  how.retain_until = retention_end(now, given.duration);
}

/// Out of line, so that the loops that release blocks stay small.
template <class State>
[[gnu::cold]] [[gnu::noinline]] void free_withdrawn(State& state, block_id block) noexcept {
  auto chains = state.chains();
  state.pool.free_withdrawn(block, chains);
}

/// Gives back one reference to the block at `index` of a chain. `fence`: see `fence_of`. Inlined, so that facts which
/// the eviction policy does not read are not computed.
template <class State>
[[gnu::always_inline]] inline void release_block(State& state, block_id block, std::size_t index, block_release how,
                                                 std::uint32_t fence) noexcept {
  how.hash = state.index.link(block).hash;
  how.parent = state.index.parent(block);
  how.depth = static_cast<std::uint32_t>(index);
  if (state.pool.release(block, how, fence)) [[unlikely]] {
    free_withdrawn(state, block);
  }
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

/// Releases the blocks of a sequence; `how`: see `release_of`.
template <class State>
void release_blocks(State& state, const sequence& from, std::size_t first, std::size_t last,
                    const block_release& how) noexcept {
  if (!from.has_ranges) [[likely]] {
    return release_blocks(state, from.blocks, first, last, how, from.steps);
  }
  auto with_range = how;
  for (auto i = last; i > first; --i) {
    apply_ranges(with_range, from, i - 1, state.block_size(), state.time());
    release_blocks(state, from.blocks, i - 1, i, with_range, from.steps);
  }
}

// A look-up calls one of these on each block that it finds. They have names, and depend on no more than the locking
// policy, so that the search is compiled once for all verbs and caches.

}  // namespace pagedkv::detail
