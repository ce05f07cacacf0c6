#pragma once

#include <pagedkv/cache/operations/parts/leases.hpp>
#include <pagedkv/cache/operations/parts/prompt_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

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

}  // namespace pagedkv::detail
