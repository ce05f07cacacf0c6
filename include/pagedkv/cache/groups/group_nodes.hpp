#pragma once

#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/core/chain_link.hpp>
#include <pagedkv/core/group_config.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/copy_run.hpp>
#include <pagedkv/detail/token_runs.hpp>
#include <pagedkv/policy/locking/parts/nodes_mutex.hpp>
#include <pagedkv/prefix/chain_match.hpp>
#include <pagedkv/prefix/prefix_index.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv {

/// The prefix index of several groups: a tree of nodes, each of `granularity` tokens, and for each node and group the
/// block that holds the node's K/V, or the first block of the state saved at the node's end. Nodes have ids of their
/// own. Contents have at most one node. A node stays while it has a block, a child or a holder.
///
/// A block of a group holds several nodes, and all tokens before them from the block's first on, whichever block the
/// nodes of these are attached to.
///
/// A *withdrawn* node is not found any more, nor what continues it. It stays for its holders, without blocks.
///
/// A node is *announced* from the time when hits can come as far as it until none can, because the node or one before
/// it has lost a block of a group that every hit needs.
template <locking Locking, block_hash Hash>
class group_nodes {
 public:
  using link_type = node_link<node_id>;

  /// Throws `std::bad_alloc`. `nodes_per_block`: of each group; 0 for states.
  group_nodes(std::int32_t num_nodes, std::int32_t num_blocks, std::int32_t granularity, std::uint64_t seed,
              std::span<const std::int32_t> nodes_per_block)
      : num_groups_(nodes_per_block.size()),
        nodes_per_block_(nodes_per_block.begin(), nodes_per_block.end()),
        index_(num_nodes, granularity, seed),
        nodes_(static_cast<std::size_t>(num_nodes)),
        attached_(nodes_.size() * num_groups_, no_block),
        blocks_(static_cast<std::size_t>(num_blocks)),
        ends_(blocks_.size()) {
    vacant_.reserve(nodes_.size());
    for (auto i = nodes_.size(); i > 0; --i) {
      vacant_.push_back(to_node(i - 1));
    }
  }

  [[nodiscard]] const prefix_index<Locking, Hash, node_id>& index() const noexcept { return index_; }
  [[nodiscard]] link_type root(salt tag) const noexcept { return index_.root(tag); }
  [[nodiscard]] link_type link(node_id node) const noexcept { return index_.link(node); }
  [[nodiscard]] std::span<const token> tokens(node_id node) const noexcept { return index_.tokens(node); }
  [[nodiscard]] node_id parent(node_id node) const noexcept { return index_.parent(node); }
  /// Nodes before it in its chain.
  [[nodiscard]] std::size_t depth(node_id node) const noexcept { return at(node).depth; }
  [[nodiscard]] std::size_t num_alive() const noexcept { return nodes_.size() - vacant_.size(); }

  /// Calls `found(node)` on the nodes of the longest known prefix, at most `max_nodes`.
  template <class Found>
  std::size_t match(const link_type& from, const token_run& run, std::size_t granularity, std::size_t max_nodes,
                    Found&& found) const noexcept {
    return match_chain(index_, from, run, granularity, max_nodes, no_leases{}, found);
  }

  /// The node of these contents after `before`, made if it is new; `no_node` when there are no more, or no memory for
  /// keys. `hash` is theirs, chained.
  [[nodiscard]] node_id find_or_add(const link_type& before, std::uint64_t hash,
                                    const block_contents& contents) noexcept {
    const auto may_be_known = before.node == no_node || at(before.node).first_child != no_node;
    const auto known = may_be_known ? index_.find(before, hash, contents, no_leases{}) : no_node;
    if (known != no_node || vacant_.empty()) {
      return known;
    }
    const auto added = vacant_.back();
    if (!contents.keys.empty() && !index_.assign_keys(added, contents.keys)) {
      return no_node;
    }
    vacant_.pop_back();
    detail::copy_tokens(contents.tokens, index_.tokens(added));
    index_.publish_first(added, before, hash);
    auto& here = at(added);
    here = {};
    if (before.node != no_node) {
      auto& above = at(before.node);
      here.depth = above.depth + 1;
      here.next = above.first_child;
      if (here.next != no_node) {
        at(here.next).previous = added;
      }
      above.first_child = added;
    }
    return added;
  }

  [[nodiscard]] node_id find_or_add(const link_type& before, const block_contents& contents) noexcept {
    return find_or_add(before, index_.hash(before.hash, contents), contents);
  }
  /// Prefetches for `find_or_add` of new contents, so many of which are added before.
  [[gnu::always_inline]] void prefetch_addition(std::uint64_t hash, std::size_t ahead) const noexcept {
    if (ahead < vacant_.size()) {
      const auto next = vacant_[vacant_.size() - 1 - ahead];
      index_.prefetch_publication(next, hash);
      __builtin_prefetch(index_.tokens(next).data(), 1);
      __builtin_prefetch(&at(next), 1);
      __builtin_prefetch(&attached_[to_index(next) * num_groups_], 1);
    }
  }

  void hold(node_id node) noexcept { ++at(node).holders; }
  void let_go(node_id node) noexcept {
    --at(node).holders;
    prune(node);
  }
  [[nodiscard]] std::uint32_t num_holders(node_id node) const noexcept { return at(node).holders; }

  [[nodiscard]] bool is_withdrawn(node_id node) const noexcept { return index_.withdrawn(node); }
  [[nodiscard]] bool is_announced(node_id node) const noexcept { return at(node).is_announced; }
  /// Requires that the node before it is announced, and that all groups which every hit needs have a block here.
  void announce(node_id node) noexcept { at(node).is_announced = true; }

  [[nodiscard]] block_id attached(node_id node, std::size_t group) const noexcept {
    return attached_[to_index(node) * num_groups_ + group];
  }
  /// Requires that the node has no block of this group, and that a block is attached to nodes of one place only.
  void attach(node_id node, std::size_t group, block_id block) noexcept {
    slot_of(node, group) = block;
    ++at(node).num_attached;
    auto& there = of(block);
    there.group = static_cast<std::uint32_t>(group);
    if (there.num_nodes++ == 0 || at(there.deepest).depth < at(node).depth) {
      there.deepest = node;
    }
    note_end(block);
  }
  /// Attaches the state in these blocks; losing one loses all.
  void attach_state(node_id node, std::size_t group, std::span<const block_id> state) noexcept {
    slot_of(node, group) = state.front();
    ++at(node).num_attached;
    for (std::size_t i = 0; i < state.size(); ++i) {
      of(state[i]) = {node, i + 1 < state.size() ? state[i + 1] : no_block, static_cast<std::uint32_t>(group), 1};
      note_end(state[i]);
    }
  }
  /// The block after this one in the same state.
  [[nodiscard]] block_id next_of_state(block_id block) const noexcept { return of(block).next; }

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
    return std::int64_t{ends_[to_index(block)].load(std::memory_order_acquire)} * granularity;
  }
  /// For blocks that were free.
  void forget_ends([[maybe_unused]] std::span<const block_id> blocks) noexcept {
    if constexpr (are_shared) {  // or else they have fallen already
      for (const auto block : blocks) {
        ends_[to_index(block)].store(0, std::memory_order_relaxed);
      }
    }
  }

  /// Calls `visit(node)` on a node and those that continue it; goes on below those for which it returns true.
  template <class Visit>
  void walk_below(node_id top, Visit&& visit) const noexcept {
    for (auto id = top;;) {
      if (visit(id) && at(id).first_child != no_node) {
        id = at(id).first_child;
        continue;
      }
      while (id != top && at(id).next == no_node) {
        id = parent(id);
      }
      if (id == top) {
        return;
      }
      id = at(id).next;
    }
  }
  /// Whether this node or one below it, in the same place, has a block of the group: that one holds the place from its
  /// start.
  [[nodiscard]] bool holds_place(node_id top, std::size_t group) const noexcept {
    auto found = false;
    walk_below(top, [&](node_id node) {
      const bool same_place = place_of(node, group) == place_of(top, group);
      found |= same_place && attached(node, group) != no_block;
      return same_place && !found;
    });
    return found;
  }

  /// How many nodes continue an attached block's in other blocks: 0, 1, or 2 for more.
  [[nodiscard]] std::uint32_t num_children(block_id block) const noexcept {
    auto num = std::uint32_t{0};
    auto below = no_node;
    for_each_node(block, [&](node_id node) {
      for (auto child = at(node).first_child; child != no_node && num < 2; child = at(child).next) {
        num += child != below;
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
  void detach(block_id block, bool is_whole, Useless&& useless, Retracted&& retracted) noexcept {
    if (!is_attached(block)) {
      return;
    }
    const auto group = group_of(block);
    const auto last = deepest(block);
    if (nodes_per_block_[group] == 0) {
      for (auto part = attached(last, group); part != no_block;) {
        const auto next = next_of_state(part);
        vacate(part);
        if (part != block) {
          useless(part);
        }
        part = next;
      }
      clear_slot(last, group);
      prune(last);
      return;
    }
    auto top = last;
    for_each_node(block, [&](node_id node) {
      clear_slot(node, group);
      top = node;
    });
    vacate(block);
    if (is_whole) {
      if (!holds_place(top, group)) {
        top = first_lost(top, group);
        for_each_below(top, [&](node_id node) { report_useless(node, top, useless); });
      }
      retract(top, group, retracted);
    }
    prune(last);
  }

  /// Withdraws a node and those that continue it, and, where these had the only block of a place that every hit needs
  /// (`is_whole(group)`), those before it in this place. Calls `lost(block)` on blocks that hold no other nodes,
  /// `retracted` as `detach` does.
  template <class IsWhole, class Lost, class Retracted>
  void withdraw(node_id top, IsWhole&& is_whole, Lost&& lost, Retracted&& retracted) noexcept {
    auto next = top;
    while (next != no_node) {
      top = next;
      for_each_below(top, [&](node_id node) { withdraw_one(node, lost, retracted); });
      next = lost_above(top, is_whole);
    }
    hold(top);
    prune_below(top);
    let_go(top);
  }
  /// Withdraws every chain with this salt. Linear in the nodes.
  template <class IsWhole, class Lost, class Retracted>
  void withdraw_chains(salt tag, IsWhole&& is_whole, Lost&& lost, Retracted&& retracted) noexcept {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const auto node = to_node(i);
      if (is_needed(node) && !is_withdrawn(node) && index_.begins_chain(node, tag)) {
        withdraw(node, is_whole, lost, retracted);
      }
    }
  }
  /// The first node in an attached block, or the one of a state.
  [[nodiscard]] node_id first_in(block_id block) const noexcept {
    auto first = deepest(block);
    if (nodes_per_block_[group_of(block)] != 0) {
      for_each_node(block, [&](node_id node) { first = node; });
    }
    return first;
  }

  /// Renames blocks after a compaction. Linear in nodes and blocks.
  template <class NewId>
  void rename_blocks(std::span<const block_pair> moves, NewId&& new_id) noexcept {
    for (const auto& [from, to] : moves) {
      of(block_id{to}) = of(block_id{from});
      note_end(block_id{to});
      vacate(block_id{from});
    }
    for (auto& block : attached_) {
      block = new_id(block);
    }
    for (auto& there : blocks_) {
      there.next = new_id(there.next);
    }
  }

  /// Calls `visit(node, depth, num_attached)` on every node that is in use. For tests.
  template <class Visit>
  void for_each(Visit&& visit) const {
    auto is_vacant = std::vector<bool>(nodes_.size());
    for (const auto node : vacant_) {
      is_vacant[to_index(node)] = true;
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!is_vacant[i]) {
        visit(to_node(i), nodes_[i].depth, nodes_[i].num_attached);
      }
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return index_.metadata_bytes() + nodes_.size() * (sizeof(node_facts) + sizeof(node_id)) +
           attached_.size() * sizeof(block_id) + blocks_.size() * (sizeof(block_place) + sizeof(end_type));
  }

 private:
  struct no_leases {
    [[nodiscard]] bool take(node_id) const noexcept { return true; }
    void end(node_id) const noexcept {}
  };

  struct node_facts {
    node_id first_child = no_node;
    node_id next = no_node;  // child of the same parent
    node_id previous = no_node;
    std::uint32_t depth = 0;
    std::uint32_t holders = 0;
    std::uint16_t num_attached = 0;
    bool is_announced = false;
  };
  using end_type = typename Locking::template atomic<std::uint32_t>;
  static constexpr bool are_shared = detail::has_nodes_mutex<typename Locking::family>;
  struct block_place {
    node_id deepest = no_node;
    block_id next = no_block;  // of the same state
    std::uint32_t group = 0;
    std::uint32_t num_nodes = 0;
  };

  [[nodiscard]] node_facts& at(node_id id) noexcept { return nodes_[to_index(id)]; }
  [[nodiscard]] const node_facts& at(node_id id) const noexcept { return nodes_[to_index(id)]; }
  [[nodiscard]] block_place& of(block_id block) noexcept { return blocks_[to_index(block)]; }
  [[nodiscard]] const block_place& of(block_id block) const noexcept { return blocks_[to_index(block)]; }
  [[nodiscard]] block_id& slot_of(node_id id, std::size_t group) noexcept {
    return attached_[to_index(id) * num_groups_ + group];
  }
  [[nodiscard]] std::uint32_t end_of(block_id block) const noexcept {
    return is_attached(block) ? at(deepest(block)).depth + 1 : 0;
  }
  void note_end(block_id block) noexcept {
    auto& highest = ends_[to_index(block)];
    const auto end = end_of(block);
    if (!are_shared || end > highest.load(std::memory_order_relaxed)) {
      highest.store(end, std::memory_order_release);
    }
  }
  void vacate(block_id block) noexcept {
    of(block) = {};
    note_end(block);
  }
  void clear_slot(node_id id, std::size_t group) noexcept {
    slot_of(id, group) = no_block;
    --at(id).num_attached;
  }

  template <class Lost, class Retracted>
  void withdraw_one(node_id node, Lost& lost, Retracted& retracted) noexcept {
    if (!index_.withdraw(node)) {
      return;
    }
    if (at(node).is_announced) {
      at(node).is_announced = false;
      retracted(node);
    }
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
    clear_slot(node, group);
    if (nodes_per_block_[group] == 0) {
      for (auto part = block; part != no_block;) {
        const auto next = next_of_state(part);
        vacate(part);
        lost(part);
        part = next;
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

  /// Calls `visit(node)` on the nodes that a block of tokens is attached to, the deepest first.
  template <class Visit>
  void for_each_node(block_id block, Visit&& visit) const noexcept {
    const auto& there = of(block);
    auto id = there.deepest;
    for (auto left = there.num_nodes; left > 0; id = parent(id)) {
      if (attached(id, there.group) == block) {
        --left;
        visit(id);
      }
    }
  }

  template <class Visit>
  void for_each_below(node_id top, Visit&& visit) const noexcept {
    walk_below(top, [&](node_id node) {
      visit(node);
      return true;
    });
  }

  [[nodiscard]] std::uint32_t place_of(node_id node, std::size_t group) const noexcept {
    return at(node).depth / static_cast<std::uint32_t>(nodes_per_block_[group]);
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

  /// Withdraws the announcement of nodes that hits can no longer pass because this place lost a block.
  template <class Retracted>
  void retract(node_id top, std::size_t group, Retracted& retracted) noexcept {
    walk_below(top, [&](node_id node) {
      auto& here = at(node);
      const auto above = parent(node);
      const bool same_place = place_of(node, group) == place_of(top, group);
      if (here.is_announced && ((above != no_node && !at(above).is_announced) ||
                                (same_place && !holds_place(node, group)))) {
        here.is_announced = false;
        retracted(node);
      }
      return same_place || !here.is_announced;
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
        for_each_node(block, [&](node_id node) { reaches_above |= at(node).depth < at(top).depth; });
      }
      if (!reaches_above) {
        useless(block);
      }
    }
  }

  [[nodiscard]] bool is_needed(node_id id) const noexcept {
    return at(id).num_attached != 0 || at(id).holders != 0 || at(id).first_child != no_node;
  }

  /// Removes a node that nothing needs, and then its ancestors of which that is true.
  void prune(node_id id) noexcept {
    while (id != no_node && !is_needed(id)) {
      const auto above = parent(id);
      remove(id);
      id = above;
    }
  }
  /// Removes what nothing needs of a tree, those that continue a node before the node.
  void prune_below(node_id top) noexcept {
    for (auto id = first_leaf(top); id != top;) {
      const auto next = at(id).next != no_node ? first_leaf(at(id).next) : parent(id);
      if (!is_needed(id)) {
        remove(id);
      }
      id = next;
    }
  }
  [[nodiscard]] node_id first_leaf(node_id id) const noexcept {
    while (at(id).first_child != no_node) {
      id = at(id).first_child;
    }
    return id;
  }

  void remove(node_id id) noexcept {
    const auto above = parent(id);
    const auto here = at(id);
    if (here.next != no_node) {
      at(here.next).previous = here.previous;
    }
    if (here.previous != no_node) {
      at(here.previous).next = here.next;
    } else if (above != no_node) {
      at(above).first_child = here.next;
    }
    index_.detach(id);
    index_.erase(id);
    vacant_.push_back(id);
  }

  std::size_t num_groups_;
  std::vector<std::int32_t> nodes_per_block_;
  prefix_index<Locking, Hash, node_id> index_;
  std::vector<node_facts> nodes_;
  std::vector<block_id> attached_;  // [node][group]
  std::vector<block_place> blocks_;
  std::vector<end_type> ends_;  // of each block, see `highest_end`: nodes from the start of the sequence
  std::vector<node_id> vacant_;
};

}  // namespace pagedkv
