#pragma once

#include <pagedkv/cache/operations/checks.hpp>
#include <pagedkv/cache/operations/leases.hpp>
#include <pagedkv/cache/operations/prompt.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/detail/runs.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

// Questions about prompts and sequences that change nothing: hits, room, common blocks, hashes.

namespace pagedkv::detail {

/// Length of the prefix, in tokens, that a sequence of this prompt would share.
template <class State>
[[nodiscard]] std::int64_t find_prefix(const State& state, const token_run& run, salt salt) noexcept {
  const auto plan = prompt_plan{std::ssize(run.tokens), state.config.block_size};
  const auto num_blocks = match_blocks(state, state.index.root(salt), run, plan.max_hits(),
                                       end_each<typename State::locking_type>{state.pool.leases()});
  return static_cast<std::int64_t>(num_blocks * state.block_size());
}

/// Blocks that a sequence of this prompt would share, `max_blocks` at most. May throw `std::bad_alloc`.
template <class State>
[[nodiscard]] std::vector<block_id> find_shared(const State& state, const token_run& prompt, salt salt,
                                                std::size_t max_blocks) {
  auto shared = std::vector<block_id>(max_blocks);
  const auto list = list_each<typename State::locking_type>{state.pool.leases(), false, shared.data()};
  shared.resize(match_blocks(state, state.index.root(salt), prompt, max_blocks, list));
  return shared;
}

/// A function that finds the prefix, of at most all blocks before the last token.
template <class State>
[[nodiscard]] auto shared_by(const State& state, const token_run& prompt, salt salt) noexcept {
  return [&, salt] {
    const auto plan = prompt_plan{std::ssize(prompt.tokens), state.config.block_size};
    return find_shared(state, prompt, salt, plan.max_hits());
  };
}

/// Chained hashes of the full nodes of a run, as far as there is room for them; returns how many.
template <class State>
[[nodiscard]] std::size_t hash_blocks(const State& state, const token_run& run, salt salt,
                                      std::span<std::uint64_t> hashes) noexcept {
  const auto& index = state.node_index();
  const auto size = state.tokens_per_node();
  const auto count = std::min(run.tokens.size() / size, hashes.size());
  auto last_hash = index.root(salt).hash;
  for (std::size_t i = 0; i < count; ++i) {
    last_hash = hashes[i] = index.hash(last_hash, run.block(i, size));
  }
  return count;
}

/// The answer of `create_sequence`, without its effects: nothing is taken, counted or reported.
template <class State>
[[nodiscard]] result<prompt_fit> would_fit(const State& state, const token_run& prompt,
                                           const sequence_options& options) noexcept {
  const auto num_tokens = std::ssize(prompt.tokens);
  if (const auto checked = check_num_sequences(state); !checked) {
    return checked.error();
  }
  if (!is_valid(options) || (has_ranges(options) && !has_valid_ranges(options))) {
    return invalid_option(options);
  }
  if (const auto checked = check_keys_within(prompt.keys, 0, num_tokens); !checked) {
    return checked.error();
  }
  const auto num_blocks = state.blocks_for(num_tokens);
  if (num_blocks > static_cast<std::size_t>(state.pool.size())) {
    return state.exceeds_pool(num_blocks);
  }
  const auto plan =
      prompt_plan{num_tokens, state.config.block_size, options.max_cached_tokens, options.first_chunk};
  const auto forecast = [&]() -> result<prompt_fit> {
    const auto shared = find_shared(state, prompt, options.salt, plan.max_hits());
    const auto num_more = state.blocks_for(plan.length(shared.size())) - shared.size();
    const auto num_available = num_more != 0 ? state.pool.num_available(shared) : 0;
    if (static_cast<std::int64_t>(num_more) > num_available) {
      return state.refusal(num_more, num_available, {.shared = shared});
    }
    return prompt_fit{static_cast<std::int64_t>(shared.size() * state.block_size()),
                      static_cast<std::int64_t>(num_more)};
  };
  return with_memory(forecast, error{error_code::out_of_memory, "number of tokens to look up", num_tokens});
}

/// Full blocks of a sequence from `first` on, without those that it has dropped and what is behind them.
[[nodiscard]] inline std::span<const block_id> full_blocks(const sequence& s, std::size_t first,
                                                           std::size_t block_size) noexcept {
  const auto num_full = s.blocks.num_dropped() != 0 ? 0 : static_cast<std::size_t>(s.num_tokens) / block_size;
  return s.blocks.all().first(num_full).subspan(std::min(first, num_full));
}

/// How many full blocks all sequences have in common at their start; `full_from(s, first)` are those of one. Compares a
/// run of the first one's table at a time, so that no two sequences are entered at once. O(common blocks times
/// sequences).
template <class State, class FullFrom>
[[nodiscard]] result<std::int64_t> common_prefix(const State& state, std::span<const sequence_id> ids,
                                                 FullFrom&& full_from) noexcept {
  auto run = std::array<block_id, 256>{};
  auto num_common = std::size_t{0};
  for (auto size = ids.empty() ? std::size_t{0} : run.size(); size == run.size(); num_common += size) {
    const auto copied = visit_sequence(state, ids[0], [&](const auto& s) -> result<void> {
      const std::span<const block_id> blocks = full_from(s, num_common);
      size = std::min(size, blocks.size());
      copy_run(blocks.first(size), std::span<block_id>{run});
      return {};
    });
    if (!copied) {
      return copied.error();
    }
    for (const auto id : ids.subspan(1)) {
      const auto compared = visit_sequence(state, id, [&](const auto& s) -> result<void> {
        const std::span<const block_id> blocks = full_from(s, num_common);
        const auto end = run.begin() + static_cast<std::ptrdiff_t>(size);
        const auto parted = std::mismatch(run.begin(), end, blocks.begin(), blocks.end());
        size = static_cast<std::size_t>(parted.first - run.begin());
        return {};
      });
      if (!compared) {
        return compared.error();
      }
    }
  }
  return static_cast<std::int64_t>(num_common);
}

template <class State>
[[nodiscard]] result<std::int64_t> common_prefix(const State& state, std::span<const sequence_id> ids,
                                                 std::size_t group) noexcept {
  if (const auto checked = check_group(state, group); !checked) {
    return checked.error();
  }
  return common_prefix(state, ids, [&](const sequence& s, std::size_t first) {
    return full_blocks(s, first, state.block_size());
  });
}

}  // namespace pagedkv::detail
