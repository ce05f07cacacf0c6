#pragma once

#include <pagedkv/cache/groups/commit.hpp>
#include <pagedkv/cache/groups/longest_hit.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/memory.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv::detail {

/// The nodes of a sequence's tokens behind those with K/V.
struct continuation {
  std::size_t first = 0;  // nodes before them
  std::vector<node_id> path;

  [[nodiscard]] std::size_t end() const noexcept { return first + path.size(); }
  [[nodiscard]] node_id node(std::size_t number) const noexcept { return path[number - first]; }
};

/// At most `most` nodes. `rest`: the tokens behind the sequence's nodes, the keys of all, hashes of `rest` if there are
/// any. May throw `std::bad_alloc`.
template <layered State>
[[nodiscard]] continuation nodes_behind(const State& state, const group_sequence& s, const token_run& rest,
                                        std::size_t most) {
  const auto size = state.tokens_per_node();
  auto found = continuation{s.num_nodes, {}};
  auto before = s.tail;
  most = std::min(most, rest.tokens.size() / size);
  for (auto i = std::size_t{0}; i < most; ++i) {
    const auto position = static_cast<std::int64_t>((found.first + i) * size);
    const auto contents = block_contents{rest.tokens.subspan(i * size, size),
                                         keys_between(rest.keys, position, position + state.granularity())};
    const auto hash = i < rest.hashes.size() ? rest.hashes[i] : state.nodes.index().hash(before.hash, contents);
    const auto node = state.nodes.find(before, hash, contents);
    if (node == no_node) {
      break;
    }
    found.path.push_back(node);
    before = state.nodes.link(node);
  }
  return found;
}

/// Where the K/V of one place is found: in a block of the device that is attached to a node, or in the tiers' records
/// of a node in the same place.
struct place_source {
  node_id node = no_node;
  block_id block = no_block;
};

/// The blocks that a sequence holds, and the blocks and records of nodes that continue it. `in_tiers(node, g)`: whether
/// there are records of a group's K/V up to a node.
template <layered State, class InTiers>
struct continuing_blocks {
  const State& state;
  const continuation& found;
  const InTiers& in_tiers;

  [[nodiscard]] bool has(std::size_t num_nodes, std::size_t g, std::size_t place) const noexcept {
    return (place + 1) * state.nodes_in_block(g) <= found.first || source(num_nodes, g, place).node != no_node;
  }
  [[nodiscard]] bool has_state(std::size_t num_nodes) const noexcept {
    const auto g = state.group_with_state();
    const auto node = found.node(num_nodes - 1);
    return state.nodes.attached(node, g) != no_block || in_tiers(node, g);
  }
  /// The source of a place that does not end before the nodes.
  [[nodiscard]] place_source source(std::size_t num_nodes, std::size_t g, std::size_t place) const noexcept {
    const auto end = (place + 1) * state.nodes_in_block(g);
    const auto last = std::min(end, num_nodes);
    const auto block = state.nodes.attached(found.node(last - 1), g);
    if (block != no_block && state.pool.can_lease(block)) {
      return {found.node(last - 1), block};
    }
    for (auto number = last; number <= std::min(end, found.end()); ++number) {
      if (in_tiers(found.node(number - 1), g)) {
        return {found.node(number - 1), no_block};
      }
    }
    return {};
  }
  /// The longest run of nodes, at most so many, behind which every group can continue; `found.first` for none.
  [[nodiscard]] std::size_t longest(std::size_t most) const noexcept {
    const auto searched = hit_search{state, *this};
    return searched.longest(searched.longest(std::min(most, found.end()), false, found.first), true, found.first);
  }
  /// Calls `visit(g, place, source)` for each place of so many nodes that the next token reads and the sequence lacks;
  /// of a state, once, with place 0.
  template <class Visit>
  void for_each_missing(std::size_t num_nodes, Visit&& visit) const {
    const auto length = static_cast<std::int64_t>(num_nodes) * state.granularity();
    for (std::size_t g = 0; g < state.num_groups(); ++g) {
      if (!state.holds_tokens(g)) {
        const auto node = found.node(num_nodes - 1);
        visit(g, std::size_t{0}, place_source{node, state.nodes.attached(node, g)});
        continue;
      }
      const auto first_read = state.first_place(g, length);
      for (auto place = found.first / state.nodes_in_block(g); place < state.places_for(g, length); ++place) {
        if (place >= first_read || place < state.num_sinks(g)) {
          visit(g, place, source(num_nodes, g, place));
        }
      }
    }
  }
};

/// The blocks with which a sequence takes what continues it.
struct continuation_plan {
  struct shared_block {
    std::size_t g;
    std::size_t place;
    block_id block;
  };
  /// Records of one node and group, and the sequence's own blocks for them.
  struct filled_place {
    std::size_t g;
    std::size_t place;
    node_id node;
    std::vector<block_id> blocks;
  };

  std::vector<shared_block> shared;  // instead of its own
  std::vector<block_pair> copies;    // to its own
  std::vector<filled_place> filled;
};

/// May throw `std::bad_alloc`.
template <layered State, class Blocks>
[[nodiscard]] continuation_plan plan_continuation(const State& state, const group_sequence& s, const Blocks& blocks,
                                                  std::size_t num_nodes) {
  auto plan = continuation_plan{};
  blocks.for_each_missing(num_nodes, [&](std::size_t g, std::size_t place, const place_source& from) {
    if (!state.holds_tokens(g)) {
      const auto own = s.tables[g].all();
      if (from.block == no_block) {
        plan.filled.push_back({g, place, from.node, {own.begin(), own.end()}});
      }
      auto part = from.block;
      for (auto to = own.begin(); part != no_block; ++to, part = state.nodes.next_of_state(part)) {
        plan.copies.push_back({static_cast<std::int32_t>(part), static_cast<std::int32_t>(*to)});
      }
    } else if (from.block == no_block) {
      plan.filled.push_back({g, place, from.node, {s.tables[g][place]}});
    } else if ((place + 1) * state.nodes_in_block(g) <= num_nodes) {
      plan.shared.push_back({g, place, from.block});
    } else {
      plan.copies.push_back({static_cast<std::int32_t>(from.block), static_cast<std::int32_t>(s.tables[g][place])});
    }
  });
  return plan;
}

/// Makes a sequence continue a node, whose tokens and those before it are its own.
template <layered State>
void continue_behind(State& state, group_sequence& s, node_id last) noexcept {
  const auto tail = s.tail;
  const auto num_new = state.nodes.depth(last) + 1 - s.num_nodes;
  s.tail = state.nodes.link(last);
  state.hold(s.tail);
  state.let_go(tail);
  s.num_nodes += num_new;
  s.pending.drop(num_new * state.tokens_per_node(), state.num_pending(s));
  s.hashes.erase(s.hashes.begin(), s.hashes.begin() + std::ptrdiff_t(std::min(num_new, s.hashes.size())));
}

/// Takes the tokens up to a node as computed: shares the device's blocks of the plan in place of the sequence's own,
/// whose K/V of other places is there by now, and publishes these. Saves no state, as hits of a creation do not.
template <layered State>
void take_continuation(State& state, group_sequence& s, const continuation_plan& plan, node_id last) noexcept {
  const auto length = (state.nodes.depth(last) + std::int64_t{1}) * state.granularity();
  const auto guard = state.guard_nodes();
  const auto fence = state.pool.fence_of(s.steps);
  for (const auto& [g, place, block] : plan.shared) {
    [[maybe_unused]] const auto referenced = state.pool.reference_published(block);
    assert(referenced);
    const auto own = s.tables[g][place];
    s.tables[g].replace(place, block);
    state.release_replaced(s, g, place, own, fence);
  }
  drop_behind_windows(state, s, length);
  s.num_computed_tokens = s.num_cached_tokens = s.num_branch_tokens = length;
  s.branch = s.branch > length ? s.branch : 0;
  s.last_access = state.time();
  if (s.options.publish) {
    publish_up_to(state, s, length);
  } else {
    continue_behind(state, s, last);
  }
  find_room(state, s);
}

}  // namespace pagedkv::detail
