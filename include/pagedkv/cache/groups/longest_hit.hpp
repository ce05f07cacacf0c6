#pragma once

#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv::detail {

/// The known nodes of a prompt, and of these the longest run from which every group can continue.
struct hit {
  std::vector<node_id> path;
  std::size_t num_nodes = 0;
  std::size_t num_without_states = 0;  // the same for groups that hold tokens
};

/// The block that a hit of the first `num_nodes` shares at a place, or of which it copies the part before its end.
template <layered State>
[[nodiscard]] block_id block_at(const State& state, const std::vector<node_id>& path, std::size_t num_nodes,
                                std::size_t g, std::size_t place) noexcept {
  const auto last = std::min((place + 1) * state.nodes_in_block(g), num_nodes) - 1;
  return state.nodes.attached(path[last], g);
}

/// Looks for the longest run of nodes of which every group holds what its next token reads, as `blocks` tells:
/// `blocks.has(num_nodes, g, place)` whether a hit of so many nodes finds a group's block at a place, and
/// `blocks.has_state(num_nodes)` whether it finds a saved state.
template <layered State, class Blocks>
class hit_search {
 public:
  hit_search(const State& state, const Blocks& blocks) noexcept : state_(state), blocks_(blocks) {}

  /// At most `num_nodes`, or `least` where none is longer than that; with states only where `with_states`.
  [[nodiscard]] std::size_t longest(std::size_t num_nodes, bool with_states, std::size_t least = 0) const noexcept {
    while (num_nodes > least) {
      const auto possible = limit(num_nodes, with_states);
      if (possible == num_nodes) {
        return num_nodes;
      }
      num_nodes = possible;
    }
    return least;
  }

 private:
  /// `num_nodes` if every group can continue there, otherwise a smaller number that the longest possible does not
  /// exceed.
  [[nodiscard]] std::size_t limit(std::size_t num_nodes, bool with_states) const noexcept {
    if (with_states && state_.group_with_state() != state_.num_groups() && !blocks_.has_state(num_nodes)) {
      return num_nodes - 1;  // ahead of the blocks of all places: few lengths have a state
    }
    const auto length = static_cast<std::int64_t>(num_nodes) * state_.granularity();
    for (std::size_t g = 0; g < state_.num_groups(); ++g) {
      if (!state_.holds_tokens(g)) {
        continue;
      }
      const auto end = state_.places_for(g, length);
      const auto first = state_.first_place(g, length);
      for (auto place = end; place > first; --place) {
        if (!blocks_.has(num_nodes, g, place - 1)) {
          return shorter(num_nodes, g, place - 1);
        }
      }
      for (auto place = std::min(first, state_.num_sinks(g)); place > 0; --place) {
        if (!blocks_.has(num_nodes, g, place - 1)) {
          return shorter(num_nodes, g, place - 1);
        }
      }
    }
    return num_nodes;
  }

  /// Without this place: shorter hits end inside it, where an earlier part may be in another block, or before it; if
  /// the group has a window, that says nothing of hits which end before the window begins here.
  [[nodiscard]] std::size_t shorter(std::size_t num_nodes, std::size_t g, std::size_t place) const noexcept {
    return std::min(num_nodes - 1, (place + 1) * state_.nodes_in_block(g) - 1);
  }

  const State& state_;
  const Blocks& blocks_;
};

/// The device's blocks of a path from the root.
template <layered State>
struct device_blocks {
  const State& state;
  const std::vector<node_id>& path;

  [[nodiscard]] bool has(std::size_t num_nodes, std::size_t g, std::size_t place) const noexcept {
    const auto block = block_at(state, path, num_nodes, g, place);
    return block != no_block && state.pool.can_lease(block);
  }
  [[nodiscard]] bool has_state(std::size_t num_nodes) const noexcept {
    const auto block = state.nodes.attached(path[num_nodes - 1], state.group_with_state());
    return block != no_block && state.pool.can_lease(block);  // as all of its blocks, which have the same holders
  }
};

/// The longest hit of at most so many tokens. Errors: `out_of_memory`.
template <layered State>
[[nodiscard]] result<hit> longest_hit(const State& state, const token_run& run, salt salt, std::int64_t most) noexcept {
  const auto num_tokens = static_cast<std::int64_t>(run.tokens.size());
  const auto max_nodes = static_cast<std::size_t>(std::min(most, num_tokens) / state.granularity());
  const auto search = [&]() -> result<hit> {
    auto found = hit{};
    found.path.resize(max_nodes);
    found.path.resize(state.nodes.match(state.nodes.root(salt), run, state.tokens_per_node(), found.path));
    const auto blocks = device_blocks<State>{state, found.path};
    const auto searched = hit_search{state, blocks};
    found.num_without_states = searched.longest(found.path.size(), false);
    found.num_nodes = searched.longest(found.num_without_states, true);
    return found;
  };
  return with_memory(search, error{error_code::out_of_memory, "number of tokens to look up", num_tokens});
}

/// The longest hit of a prompt, whose last token is left to compute.
template <layered State>
[[nodiscard]] result<hit> longest_hit_of_prompt(const State& state, const token_run& prompt, salt salt,
                                                std::int64_t most) noexcept {
  const auto num_tokens = static_cast<std::int64_t>(prompt.tokens.size());
  return longest_hit(state, prompt, salt, std::min(most, std::max(num_tokens, std::int64_t{1}) - 1));
}

}  // namespace pagedkv::detail
