#pragma once

#include <pagedkv/core/config.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/storage/memory_plan.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// The shapes of groups: how a sequence's tokens divide into nodes, which all groups share, and into places, which are
/// the blocks of one group.
class group_shapes {
 public:
  /// Requires a list and a plan that go together.
  group_shapes(const group_list& listed, const memory_plan& planned) noexcept
      : plan(planned), groups_(listed), num_groups_(listed.size()) {
    for (std::size_t g = 0; g < num_groups(); ++g) {
      const auto kind = group(g).kind;
      nodes_in_block_[g] = static_cast<std::uint32_t>(block_size(g) / granularity());
      holds_tokens_ |= (group(g).holds_tokens() ? 1U : 0U) << g;
      is_whole_ |= (kind == group_kind::full || kind == group_kind::latent ? 1U : 0U) << g;
    }
    nodes_are_places_ = num_groups_ == 1 && is_whole(0) && nodes_in_block_[0] == 1;
  }

  [[nodiscard]] std::size_t num_groups() const noexcept { return num_groups_; }
  [[nodiscard]] const group_config& group(std::size_t g) const noexcept { return groups_[g]; }
  [[nodiscard]] bool holds_tokens(std::size_t g) const noexcept { return (holds_tokens_ >> g & 1) != 0; }
  /// Whether a hit needs all of the group's blocks.
  [[nodiscard]] bool is_whole(std::size_t g) const noexcept { return (is_whole_ >> g & 1) != 0; }
  /// Whether there is such a group. Its blocks then bound the nodes.
  [[nodiscard]] bool has_whole() const noexcept { return is_whole_ != 0; }
  /// The group of states; `num_groups` if there is none.
  [[nodiscard]] std::size_t group_with_state() const noexcept {
    const auto groups = groups_.all();
    return static_cast<std::size_t>(std::ranges::find(groups, group_kind::state, &group_config::kind) - groups.begin());
  }
  /// The first group that every hit needs, or the first one if there is none: events tell of its layers.
  [[nodiscard]] std::size_t anchor() const noexcept {
    return has_whole() ? static_cast<std::size_t>(std::countr_zero(is_whole_)) : 0;
  }
  /// Tokens of a node.
  [[nodiscard]] std::int64_t granularity() const noexcept { return plan.hit_granularity; }
  [[nodiscard]] std::size_t tokens_per_node() const noexcept { return static_cast<std::size_t>(granularity()); }
  [[nodiscard]] std::int64_t block_size(std::size_t g) const noexcept { return plan.groups[g].block_size; }
  [[nodiscard]] std::size_t nodes_in_block(std::size_t g) const noexcept { return nodes_in_block_[g]; }
  /// Nodes that suffice for a block, or a record of one. Every node is in some block of a group that every hit needs,
  /// in use or evictable, at its place in the block: as many as such blocks have places. Without such a group, nodes of
  /// tokens whose blocks are gone stay for those behind them: as many as 1/256 of a block's bytes hold, at least
  /// `fewest_per_block`.
  [[nodiscard]] std::int64_t nodes_per_block() const noexcept {
    if (has_whole()) {
      return fewest_nodes_in_block();
    }
    const auto bytes_of_node = granularity() * std::int64_t{sizeof(token)} + 100;
    return std::max(fewest_per_block, std::min(plan.block_bytes / 256 / bytes_of_node, std::int64_t{1} << 20));
  }
  /// Nodes for a record whose bytes take none of this machine's memory or files.
  [[nodiscard]] std::int64_t nodes_per_known_record() const noexcept {
    return has_whole() ? fewest_nodes_in_block() : fewest_per_block;
  }
  /// The place of a node with so many before it.
  [[nodiscard]] std::size_t place_of_node(std::size_t g, std::uint32_t depth) const noexcept {
    return nodes_in_block_[g] == 1 ? depth : depth / nodes_in_block_[g];
  }
  /// Calls `visit(g, place)` on the place of a node with so many before it in each group that holds tokens.
  template <class Visit>
  [[gnu::always_inline]] void for_each_place(std::size_t depth, Visit&& visit) const noexcept {
    if (nodes_are_places_) [[likely]] {
      return visit(std::size_t{0}, depth);
    }
    for (std::size_t g = 0; g < num_groups_; ++g) {
      if (holds_tokens(g)) {
        visit(g, place_of_node(g, static_cast<std::uint32_t>(depth)));
      }
    }
  }
  /// Others may release blocks behind a window. (States are saved at the ends of nodes.)
  [[nodiscard]] bool commits_only_publish() const noexcept { return holds_tokens_ == is_whole_; }
  [[nodiscard]] std::size_t place_of(std::size_t g, std::int64_t position) const noexcept {
    return static_cast<std::size_t>(position / block_size(g));
  }
  [[nodiscard]] std::size_t places_for(std::size_t g, std::int64_t num_tokens) const noexcept {
    return static_cast<std::size_t>((num_tokens + block_size(g) - 1) / block_size(g));
  }
  /// Entries of a group's table for so many tokens; behind a window, where each token is committed before the next one.
  [[nodiscard]] std::size_t entries_for(std::size_t g, std::int64_t num_tokens) const noexcept {
    const auto all = places_for(g, num_tokens);
    return is_whole(g) ? all : std::min(all, num_sinks(g) + places_for(g, group(g).window) + 2);
  }
  /// The first place, sinks aside, that tokens from this length on may read.
  [[nodiscard]] std::size_t first_place(std::size_t g, std::int64_t num_tokens) const noexcept {
    return place_of(g, group(g).first_needed(num_tokens));
  }
  [[nodiscard]] std::size_t num_sinks(std::size_t g) const noexcept { return places_for(g, group(g).num_sinks); }
  [[nodiscard]] bool has_sinks() const noexcept {
    return std::ranges::any_of(groups_.all(), [](const group_config& group) { return group.num_sinks != 0; });
  }
  [[nodiscard]] std::size_t blocks_of_state(std::size_t g) const noexcept {
    return static_cast<std::size_t>(plan.groups[g].blocks_per_state);
  }
  /// Records of a group that a node has in tiers.
  [[nodiscard]] std::size_t records_of_node(std::size_t g) const noexcept {
    return holds_tokens(g) ? 1 : blocks_of_state(g);
  }

  memory_plan plan;

 private:
  static constexpr auto fewest_per_block = std::int64_t{32};

  /// The fewest nodes of a block, among the groups of which a hit needs all blocks.
  [[nodiscard]] std::int64_t fewest_nodes_in_block() const noexcept {
    auto fewest = std::uint32_t{0};
    for (std::size_t g = 0; g < num_groups(); ++g) {
      fewest = is_whole(g) && (fewest == 0 || nodes_in_block_[g] < fewest) ? nodes_in_block_[g] : fewest;
    }
    return fewest;
  }

  group_list groups_;
  std::array<std::uint32_t, group_list::max_size> nodes_in_block_{};
  std::size_t num_groups_;
  std::uint32_t holds_tokens_ = 0;  // a bit for each group
  std::uint32_t is_whole_ = 0;
  bool nodes_are_places_ = false;  // of one group, of which a hit needs all blocks
};

}  // namespace pagedkv
