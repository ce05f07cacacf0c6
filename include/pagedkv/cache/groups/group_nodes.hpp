#pragma once

#include <pagedkv/core/config.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/policy/locking/parts/mutexes.hpp>
#include <pagedkv/prefix/node_tree.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv {

/// The prefix index of several groups: a tree of nodes, each of `granularity` tokens, and for each node and group the
/// block that holds the node's K/V, or the first block of the state saved at the node's end. A node with a block is
/// used.
///
/// A block of a group holds several nodes, and all tokens before them from the block's first on, whichever block the
/// nodes of these are attached to.
///
/// Nodes that continue a withdrawn one are withdrawn, too. Withdrawn nodes have no blocks.
///
/// A node is *announced* from the time when hits can come as far as it until none can, because the node or one before
/// it has lost a block of a group that every hit needs. Where there is no such group, it is announced as long as it or
/// one behind it has a block.
template <locking Locking, block_hash Hash>
class group_nodes : public node_tree<Locking, Hash> {
  using tree = node_tree<Locking, Hash>;

 public:
  using link_type = typename tree::link_type;
  using tree::depth;
  using tree::first_child;
  using tree::for_each_below;
  using tree::hold;
  using tree::index;
  using tree::is_withdrawn;
  using tree::next;
  using tree::parent;
  using tree::walk_below;

  /// Throws `std::bad_alloc`. `nodes_per_block`: of each group; 0 for states. `has_whole`: whether every hit needs all
  /// blocks of some group.
  group_nodes(std::int32_t num_nodes, std::int32_t num_blocks, std::int32_t granularity, std::uint64_t seed,
              std::span<const std::int32_t> nodes_per_block, bool has_whole)
      : tree(num_nodes, granularity, seed),
        num_groups_(nodes_per_block.size()),
        nodes_per_block_(nodes_per_block.begin(), nodes_per_block.end()),
        has_whole_(has_whole),
        attached_(static_cast<std::size_t>(num_nodes) * num_groups_, no_block),
        blocks_(static_cast<std::size_t>(num_blocks)),
        next_of_state_(std::ranges::count(nodes_per_block, 0) != 0 ? blocks_.size() : 0, no_block),
        ends_(are_shared ? blocks_.size() : 0) {}

  [[nodiscard]] std::span<const token> tokens(node_id node) const noexcept { return index().tokens(node); }

  using tree::find_or_add;
  [[nodiscard]] node_id find_or_add(const link_type& before, const block_contents& contents) noexcept {
    return find_or_add(before, index().hash(before.hash, contents), contents);
  }
  /// Prefetches for `find_or_add` of new contents, so many of which are added before.
  [[gnu::always_inline]] void prefetch_addition(std::size_t ahead, std::uint64_t hash) const noexcept {
    static_cast<void>(tree::prefetch_addition(ahead, hash));
  }
  void let_go(node_id node) noexcept {
    tree::let_go(node);
    prune(node);
  }
  /// Removes a node that nothing needs, and then its ancestors of which that is true.
  void prune(node_id node) noexcept { tree::prune(node, is_used()); }
  /// Whether a node has a block, is held or is continued. All others are removed.
  [[nodiscard]] bool is_needed(node_id node) const noexcept {
    const auto used = is_used();
    return tree::is_needed(node, used);
  }

  [[nodiscard]] bool is_announced(node_id node) const noexcept { return tree::is_marked(node); }
  /// Requires that the node before it is announced, and that all groups which every hit needs have a block here.
  void announce(node_id node) noexcept { tree::mark(node, true); }
  /// Announces a node with a block and those before it, where hits need no group's blocks all. Calls `announced(node)`
  /// on those that were not, the first one first.
  template <class Announced>
  void announce_path(node_id last, Announced&& announced) noexcept {
    auto top = no_node;
    for (auto node = last; node != no_node && !is_announced(node); node = parent(node)) {
      announce(node);
      top = node;
    }
    if (top != no_node) {
      walk_below(top, [&](node_id node) {
        if (is_announced(node)) {
          announced(node);
        }
        return is_announced(node);
      });
    }
  }

  [[nodiscard]] bool is_announced_behind(node_id node) const noexcept {
    auto child = first_child(node);
    while (child != no_node && !is_announced(child)) {
      child = next(child);
    }
    return child != no_node;
  }

  [[nodiscard]] bool has_block(node_id node) const noexcept {
    auto found = false;
    for (std::size_t group = 0; group < num_groups_; ++group) {
      found |= attached(node, group) != no_block;
    }
    return found;
  }
  [[nodiscard]] block_id attached(node_id node, std::size_t group) const noexcept {
    return attached_[to_index(node) * num_groups_ + group];
  }
  /// Requires that the node has no block of this group, and that a block is attached to nodes of one place only.
  void attach(node_id node, std::size_t group, block_id block) noexcept {
    slot_of(node, group) = block;
    if (auto& there = of(block); there.num_nodes == 0) {
      there = {node, 1, static_cast<std::uint8_t>(group)};
    } else {
      there.deepest = depth(there.deepest) < depth(node) ? node : there.deepest;
      ++there.num_nodes;
    }
    note_end(block);
  }
  /// Attaches the state in these blocks; losing one loses all.
  void attach_state(node_id node, std::size_t group, std::span<const block_id> state) noexcept {
    slot_of(node, group) = state.front();
    for (std::size_t i = 0; i < state.size(); ++i) {
      of(state[i]) = {node, 1, static_cast<std::uint8_t>(group)};
      next_of_state_[to_index(state[i])] = i + 1 < state.size() ? state[i + 1] : no_block;
      note_end(state[i]);
    }
  }
  /// The block after this one in the same state.
  [[nodiscard]] block_id next_of_state(block_id block) const noexcept { return next_of_state_[to_index(block)]; }

  [[nodiscard]] bool is_attached(block_id block) const noexcept { return of(block).num_nodes != 0; }
  [[nodiscard]] std::size_t group_of(block_id block) const noexcept { return of(block).group; }
  /// The last node in an attached block.
  [[nodiscard]] node_id deepest(block_id block) const noexcept { return of(block).deepest; }
  /// Tokens from the start of the sequence to the end of a block's last node; 0 for a block that is not attached.
  [[nodiscard]] std::int64_t published_end(block_id block, std::int64_t granularity) const noexcept {
    return std::int64_t{end_of(block)} * granularity;
  }
  /// At least `published_end`, for the holders of a block. Equal to it where one thread at a time is inside. Where
  /// others change the tree meanwhile, it never falls while the block is held, so no hit found the tokens behind it.
  [[nodiscard]] std::int64_t highest_end(block_id block, std::int64_t granularity) const noexcept {
    if constexpr (are_shared) {
      return std::int64_t{ends_[to_index(block)].load(std::memory_order_acquire)} * granularity;
    } else {
      return published_end(block, granularity);
    }
  }
  /// Forgets the ends of blocks that were free.
  void forget_ends([[maybe_unused]] std::span<const block_id> blocks) noexcept {
    if constexpr (are_shared) {  // or else they have fallen already
      for (const auto block : blocks) {
        ends_[to_index(block)].store(0, std::memory_order_relaxed);
      }
    }
  }

  /// Whether this node or one below it, in the same place, has a block of the group: that one holds the place from its
  /// start.
  [[nodiscard]] bool holds_place(node_id top, std::size_t group) const noexcept {
    auto found = attached(top, group) != no_block;
    if (found || nodes_per_block_[group] == 1) {
      return found;
    }
    walk_below(top, [&](node_id node) {
      const bool same_place = place_of(node, group) == place_of(top, group);
      found |= same_place && attached(node, group) != no_block;
      return same_place && !found;
    });
    return found;
  }

  /// Whether nodes continue an attached block's in other blocks of its group. Nodes that only tiers need do not count.
  [[nodiscard]] bool has_children(block_id block) const noexcept {
    const auto is_leaf = nodes_per_block_[group_of(block)] == 1 && first_child(deepest(block)) == no_node;
    return !is_leaf && is_continued(block);
  }
  /// How many of them there are: 0, 1, or 2 for more.
  [[nodiscard]] std::uint32_t num_children(block_id block) const noexcept {
    auto num = std::uint32_t{0};
    auto below = no_node;
    for_each_node(block, [&](node_id node) {
      for (auto child = first_child(node); child != no_node && num < 2; child = next(child)) {
        num += child != below && holds_place(child, group_of(block));
      }
      below = node;
    });
    return num;
  }
  /// The block of the same group that an attached block continues; `no_block` without one.
  [[nodiscard]] block_id block_before(block_id block) const noexcept {
    const auto before = is_attached(block) ? parent(first_in(block)) : no_node;
    return before != no_node ? attached(before, group_of(block)) : no_block;
  }

  /// Detaches a block, or the whole state that it is a part of. Calls `useless(other)` on blocks that no hit can need
  /// any more: of the same state, or, if the group `is_whole` (full or latent), of the nodes in the block and of all
  /// that continue them, unless these continue in another block of the same place. Calls `retracted(node)` on nodes
  /// that are no longer announced, in no particular order.
  template <class Useless, class Retracted>
  [[gnu::always_inline]] void detach(block_id block, bool is_whole, Useless&& useless, Retracted&& retracted) noexcept {
    if (!is_attached(block)) {
      return;
    }
    if (const auto last = deepest(block);
        num_groups_ == 1 && nodes_per_block_.front() == 1 && first_child(last) == no_node) [[likely]] {
      detach_leaf(block, last, retracted);
    } else {
      detach_any(block, is_whole, useless, retracted);
    }
  }

  /// Withdraws a node and those that continue it, and, where these had the only block of a place that every hit needs
  /// (`is_whole(group)`), those before it in this place. Calls `lost(block)` on blocks that hold no other nodes,
  /// `retracted` as `detach` does.
  template <class IsWhole, class Lost, class Retracted>
  void withdraw(node_id top, IsWhole&& is_whole, Lost&& lost, Retracted&& retracted) noexcept {
    for (auto above = top; above != no_node; above = lost_above(top, is_whole)) {
      top = above;
      for_each_below(top, [&](node_id node) { withdraw_one(node, lost, retracted); });
    }
    retract_unused(parent(top), retracted);
    tree::prune_below(top, is_used());
  }
  /// Withdraws every chain with this salt. Linear in the nodes.
  template <class IsWhole, class Lost, class Retracted>
  void withdraw_chains(salt salt, IsWhole&& is_whole, Lost&& lost, Retracted&& retracted) noexcept {
    tree::for_each([&](node_id node) {
      if (!is_withdrawn(node) && index().begins_chain(node, salt)) {
        withdraw(node, is_whole, lost, retracted);
      }
    });
  }
  /// The first node in an attached block, or the one of a state.
  [[nodiscard]] node_id first_in(block_id block) const noexcept {
    auto first = deepest(block);
    if (nodes_per_block_[group_of(block)] != 0) {
      for_each_node(block, [&](node_id node) { first = node; });
    }
    return first;
  }

  /// Calls `visit(node)` on the nodes that a block of tokens is attached to, the deepest first.
  template <class Visit>
  void for_each_node(block_id block, Visit&& visit) const noexcept {
    const auto& there = of(block);
    auto id = there.deepest;
    for (auto left = there.num_nodes; left > 0; id = parent(id)) {
      if (id == there.deepest || attached(id, there.group) == block) {
        --left;
        visit(id);
      }
    }
  }

  /// Renames blocks after a compaction. Linear in nodes and blocks.
  template <class NewId>
  void rename_blocks(std::span<const block_pair> moves, NewId&& new_id) noexcept {
    for (const auto& [from, to] : moves) {
      of(block_id{to}) = of(block_id{from});
      note_end(block_id{to});
      if (!next_of_state_.empty()) {
        next_of_state_[static_cast<std::size_t>(to)] = next_of_state_[static_cast<std::size_t>(from)];
      }
      vacate(block_id{from});
    }
    for (auto& block : attached_) {
      block = new_id(block);
    }
    std::ranges::transform(next_of_state_, next_of_state_.begin(), new_id);
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return tree::metadata_bytes() + (attached_.size() + next_of_state_.size()) * sizeof(block_id) +
           blocks_.size() * sizeof(block_place) + ends_.size() * sizeof(end_type);
  }

 private:
  using end_type = typename Locking::template atomic<std::uint32_t>;
  static constexpr bool are_shared = detail::has_nodes_mutex<typename Locking::family>;
  struct block_place {
    node_id deepest = no_node;
    std::uint32_t num_nodes : 24 = 0;
    std::uint32_t group : 8 = 0;
  };

  [[nodiscard]] auto is_used() const noexcept {
    return [this](node_id node) { return has_block(node); };
  }
  /// `has_children`, out of line.
  [[nodiscard]] [[gnu::noinline]] bool is_continued(block_id block) const noexcept {
    const auto group = group_of(block);
    if (nodes_per_block_[group] != 1) {
      return num_children(block) != 0;
    }
    auto child = first_child(deepest(block));
    while (child != no_node && attached(child, group) == no_block) {
      child = next(child);
    }
    return child != no_node;
  }
  [[nodiscard]] block_place& of(block_id block) noexcept { return blocks_[to_index(block)]; }
  [[nodiscard]] const block_place& of(block_id block) const noexcept { return blocks_[to_index(block)]; }
  [[nodiscard]] block_id& slot_of(node_id id, std::size_t group) noexcept {
    return attached_[to_index(id) * num_groups_ + group];
  }
  [[nodiscard]] std::uint32_t end_of(block_id block) const noexcept {
    return is_attached(block) ? depth(deepest(block)) + 1 : 0;
  }
  void note_end([[maybe_unused]] block_id block) noexcept {
    if constexpr (are_shared) {
      auto& highest = ends_[to_index(block)];
      if (const auto end = end_of(block); end > highest.load(std::memory_order_relaxed)) {
        highest.store(end, std::memory_order_release);
      }
    }
  }
  void vacate(block_id block) noexcept {
    of(block) = {};
    note_end(block);
  }

  /// `detach` of the only block of a node that nothing continues, in short.
  template <class Retracted>
  [[gnu::always_inline]] void detach_leaf(block_id block, node_id node, Retracted& retracted) noexcept {
    slot_of(node, 0) = no_block;
    vacate(block);
    has_whole_ ? retract_one(node, retracted) : retract_unused(node, retracted);
    if (tree::num_holders(node) == 0) {
      const auto above = parent(node);
      tree::remove(node);
      if (above != no_node && attached(above, 0) == no_block) {
        prune(above);
      }
    }
  }
  template <class Useless, class Retracted>
  [[gnu::noinline]] void detach_any(block_id block, bool is_whole, Useless& useless, Retracted& retracted) noexcept {
    const auto group = group_of(block);
    const auto last = deepest(block);
    if (nodes_per_block_[group] == 0) {
      for (auto part = attached(last, group); part != no_block;) {
        const auto after = next_of_state(part);
        vacate(part);
        if (part != block) {
          useless(part);
        }
        part = after;
      }
      slot_of(last, group) = no_block;
      retract_unused(last, retracted);
      prune(last);
      return;
    }
    auto top = last;
    for_each_node(block, [&](node_id node) {
      slot_of(node, group) = no_block;
      top = node;
    });
    vacate(block);
    if (is_whole) {
      if (!holds_place(top, group)) {
        top = first_lost(top, group);
        walk_below(top, [&](node_id node) {  // blocks behind a node that hits did not reach were useless before
          report_useless(node, top, useless);
          return is_announced(node);
        });
      }
      retract(top, group, retracted);
    }
    retract_unused(last, retracted);
    prune(last);
  }

  template <class Lost, class Retracted>
  void withdraw_one(node_id node, Lost& lost, Retracted& retracted) noexcept {
    if (!tree::withdraw(node)) {
      return;
    }
    retract_one(node, retracted);
    for (std::size_t group = 0; group < num_groups_; ++group) {
      detach_from(node, group, lost);
    }
  }

  /// The node before this one if hits reach it no more because this one has lost its blocks.
  template <class IsWhole>
  [[nodiscard]] node_id lost_above(node_id node, IsWhole& is_whole) const noexcept {
    const auto above = parent(node);
    if (above == no_node || !is_announced(above)) {
      return no_node;
    }
    for (std::size_t group = 0; group < num_groups_; ++group) {
      if (is_whole(group) && !holds_place(above, group)) {
        return above;
      }
    }
    return no_node;
  }

  /// Takes a node's block of a group, if it has one, from it; of several nodes, from the first one on. Calls
  /// `lost(block)` when the block holds no nodes any more, or on all blocks of the state.
  template <class Lost>
  void detach_from(node_id node, std::size_t group, Lost& lost) noexcept {
    const auto block = attached(node, group);
    if (block == no_block) {
      return;
    }
    slot_of(node, group) = no_block;
    if (nodes_per_block_[group] == 0) {
      for (auto part = block; part != no_block;) {
        const auto after = next_of_state(part);
        vacate(part);
        lost(part);
        part = after;
      }
    } else if (--of(block).num_nodes == 0) {
      vacate(block);
      lost(block);
    } else if (of(block).deepest == node) {
      auto last = parent(node);
      while (attached(last, group) != block) {
        last = parent(last);
      }
      of(block).deepest = last;
      note_end(block);
    }
  }

  [[nodiscard]] std::uint32_t place_of(node_id node, std::size_t group) const noexcept {
    const auto size = static_cast<std::uint32_t>(nodes_per_block_[group]);
    return size == 1 ? depth(node) : depth(node) / size;
  }

  /// The first node of a place that has lost its last block with this one: those before it were held by that block,
  /// too.
  [[nodiscard]] node_id first_lost(node_id node, std::size_t group) const noexcept {
    for (auto above = parent(node);
         above != no_node && place_of(above, group) == place_of(node, group) && !holds_place(above, group);
         above = parent(above)) {
      node = above;
    }
    return node;
  }

  template <class Retracted>
  void retract_one(node_id node, Retracted& retracted) noexcept {
    if (is_announced(node)) {
      tree::mark(node, false);
      retracted(node);
    }
  }
  /// Where hits need no group's blocks all: withdraws the announcement of a node, and then of those before it, as long
  /// as they have no block and nothing announced continues them.
  template <class Retracted>
  void retract_unused(node_id node, Retracted& retracted) noexcept {
    while (!has_whole_ && node != no_node && is_announced(node) && !has_block(node) && !is_announced_behind(node)) {
      retract_one(node, retracted);
      node = parent(node);
    }
  }
  /// Withdraws the announcement of nodes that hits can no longer pass because this place lost a block.
  template <class Retracted>
  void retract(node_id top, std::size_t group, Retracted& retracted) noexcept {
    walk_below(top, [&](node_id node) {
      if (!is_announced(node)) {
        return false;
      }
      const auto above = parent(node);
      const bool same_place = place_of(node, group) == place_of(top, group);
      if ((above != no_node && !is_announced(above)) || (same_place && !holds_place(node, group))) {
        retract_one(node, retracted);
      }
      return same_place || !is_announced(node);
    });
  }

  /// Blocks that hold nodes above `top`, too, stay.
  template <class Useless>
  void report_useless(node_id id, node_id top, Useless& useless) noexcept {
    for (std::size_t group = 0; group < num_groups_; ++group) {
      const auto block = attached(id, group);
      if (block == no_block || deepest(block) != id) {
        continue;
      }
      auto reaches_above = false;
      if (nodes_per_block_[group] != 0) {
        for_each_node(block, [&](node_id node) { reaches_above |= depth(node) < depth(top); });
      }
      if (!reaches_above) {
        useless(block);
      }
    }
  }

  std::size_t num_groups_;
  std::vector<std::int32_t> nodes_per_block_;
  bool has_whole_;
  std::vector<block_id> attached_;  // [node][group]
  std::vector<block_place> blocks_;
  std::vector<block_id> next_of_state_;  // of each block, if there are states
  std::vector<end_type> ends_;           // of each block, see `highest_end`: nodes from the start of the sequence
};

}  // namespace pagedkv
