#pragma once

#include <pagedkv/cache/groups/commit.hpp>
#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/cache/operations/unlaunched.hpp>
#include <pagedkv/core/token_run.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

// How nodes are hidden from look-ups, with the blocks of all groups that need them.

namespace pagedkv::detail {

/// Invalidates, from the first one on that has a block of the sequence, or one that it may have dropped, the nodes that
/// it has published ahead of a launch, from node number `first_hidden` on, and so everything that continues them;
/// returns how many blocks. Does at the nodes before these what a release does.
template <layered State>
std::int64_t withdraw_unlaunched(State& state, group_sequence& s, std::size_t first_hidden = 0) noexcept {
  auto first = no_node;
  auto node = s.tail.node;
  const auto end = is_unlaunched(state, s) ? std::max(s.first_unlaunched, first_hidden) : s.num_nodes;
  for (auto left = s.num_nodes; left > end; --left, node = state.nodes.parent(node)) {
    state.for_each_place(left - 1, [&](std::size_t g, std::size_t place) {
      const auto block = state.nodes.attached(node, g);
      const auto is_own = block == s.tables[g][place] || !s.tables[g].is_held(place);
      first = block != no_block && is_own ? node : first;
    });
  }
  const auto count = first == no_node ? 0 : state.invalidate([&](auto&& is_whole, auto&& lost, auto&& retracted) {
    state.nodes.withdraw(first, is_whole, lost, retracted);
  });
  if (s.has_copies) {
    attach_blocks_again(state, s, end);
  }
  return count;
}

/// Invalidates the first run of these tokens, if it is known, and so everything that continues it; returns how many
/// blocks.
template <layered State>
std::int64_t invalidate_prefix(State& state, const token_run& run, salt salt) noexcept {
  const auto guard = state.guard_nodes();
  auto first = no_node;
  const auto size = state.tokens_per_node();
  const auto most = std::min(run.tokens.size() / size, std::size_t{1});
  if (state.nodes.match(state.nodes.root(salt), run, size, std::span{&first, most}) == 0) {
    return 0;
  }
  return state.invalidate([&](auto&& is_whole, auto&& lost, auto&& retracted) {
    state.nodes.withdraw(first, is_whole, lost, retracted);
  });
}

/// Invalidates every chain with this salt; returns how many blocks. Linear in the nodes.
template <layered State>
std::int64_t invalidate_salt(State& state, salt salt) noexcept {
  const auto guard = state.guard_nodes();
  return state.invalidate([&](auto&& is_whole, auto&& lost, auto&& retracted) {
    state.nodes.withdraw_chains(salt, is_whole, lost, retracted);
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
