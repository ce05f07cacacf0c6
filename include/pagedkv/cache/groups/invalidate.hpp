#pragma once

#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/core/token_run.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Invalidates the first run of these tokens, if it is known, and so everything that continues it; returns how many
/// blocks.
template <layered State>
std::int64_t invalidate_prefix(State& state, const token_run& run, salt tag) noexcept {
  const auto guard = state.guard_nodes();
  auto first = no_node;
  const auto size = state.tokens_per_node();
  const auto most = std::min(run.tokens.size() / size, std::size_t{1});
  if (state.nodes.match(state.nodes.root(tag), run, size, std::span{&first, most}) == 0) {
    return 0;
  }
  return state.invalidate([&](auto&& is_whole, auto&& lost, auto&& retracted) {
    state.nodes.withdraw(first, is_whole, lost, retracted);
  });
}

/// Invalidates every chain with this salt; returns how many blocks. Linear in the nodes.
template <layered State>
std::int64_t invalidate_salt(State& state, salt tag) noexcept {
  const auto guard = state.guard_nodes();
  return state.invalidate([&](auto&& is_whole, auto&& lost, auto&& retracted) {
    state.nodes.withdraw_chains(tag, is_whole, lost, retracted);
  });
}

/// Invalidates the tokens in those of these blocks that are cached, and what continues them; returns how many blocks.
/// Errors: `invalid_argument` outside the pool.
template <layered State>
[[nodiscard]] result<std::int64_t> invalidate_blocks(State& state, std::span<const block_id> blocks) noexcept {
  const auto num_blocks = state.pool.size();
  const auto outside = [&](block_id block) { return to_index(block) >= static_cast<std::size_t>(num_blocks); };
  if (const auto found = std::ranges::find_if(blocks, outside); found != blocks.end()) {
    return bad_index("block to invalidate", static_cast<std::int64_t>(*found), num_blocks);
  }
  const auto guard = state.guard_nodes();
  return state.invalidate([&](auto&& is_whole, auto&& lost, auto&& retracted) {
    for (const auto block : blocks) {
      if (state.nodes.is_attached(block)) {
        state.nodes.withdraw(state.nodes.first_in(block), is_whole, lost, retracted);
      }
    }
  });
}

}  // namespace pagedkv::detail
