#pragma once

#include <pagedkv/cache/groups/commit.hpp>
#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/cache/operations/parts/unlaunched.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

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

}  // namespace pagedkv::detail
