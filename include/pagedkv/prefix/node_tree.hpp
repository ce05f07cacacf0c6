#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/runs.hpp>
#include <pagedkv/prefix/chain_match.hpp>
#include <pagedkv/prefix/prefix_index.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv {

/// Nodes with numbers of their own over a prefix index. Contents that can be found have one node. A node stays while it
/// has a child, a holder, or a use: what its user keeps at the node, as `is_used(node)` tells.
///
/// A *withdrawn* node is not found any more. It stays while it is needed, as do those that continue it.
///
/// 24 bytes for each node beside the index's. One thread at a time; only the constructor allocates, except for keys.
template <locking Locking, block_hash Hash>
class node_tree {
 public:
  using index_type = prefix_index<Locking, Hash, node_id>;
  using link_type = typename index_type::link_type;

  /// Throws `std::bad_alloc`.
  node_tree(std::int32_t num_nodes, std::int32_t block_size, std::uint64_t seed)
      : index_(num_nodes, block_size, seed), nodes_(static_cast<std::size_t>(num_nodes)), num_vacant_(nodes_.size()) {
    vacant_.reserve(num_vacant_);
    for (auto i = num_vacant_; i > 0; --i) {
      vacant_.push_back(to_node(i - 1));
    }
  }

  [[nodiscard]] const index_type& index() const noexcept { return index_; }
  [[nodiscard]] link_type root(salt salt) const noexcept { return index_.root(salt); }
  [[nodiscard]] link_type link(node_id node) const noexcept { return index_.link(node); }
  [[nodiscard]] node_id parent(node_id node) const noexcept { return index_.parent(node); }
  [[nodiscard]] node_id first_child(node_id node) const noexcept { return index_.first_child(node); }
  /// The next child of the same parent.
  [[nodiscard]] node_id next(node_id node) const noexcept { return at(node).next; }
  /// Nodes before it in its chain.
  [[nodiscard]] std::uint32_t depth(node_id node) const noexcept { return at(node).depth; }

  [[nodiscard]] std::size_t size() const noexcept { return nodes_.size(); }
  [[nodiscard]] bool is_full() const noexcept { return num_vacant_ == 0; }
  [[nodiscard]] std::size_t num_alive() const noexcept { return nodes_.size() - num_vacant_; }

  /// Writes the nodes of the longest known prefix, as far as there is room, and returns their number.
  std::size_t match(const link_type& from, const token_run& run, std::size_t block_size,
                    std::span<node_id> nodes) const noexcept {
    return match_chain(index_, from, run, block_size, nodes.size(), no_leases{},
                       [next = nodes.data()](node_id node) mutable { *next++ = node; });
  }
  /// The node of these contents after `before`; `no_node` if there is none. `hash` is theirs, chained.
  [[nodiscard]] node_id find(const link_type& before, std::uint64_t hash,
                             const block_contents& contents) const noexcept {
    const auto may_be_known = before.node == no_node || first_child(before.node) != no_node;
    return may_be_known ? index_.find(before, hash, contents, no_leases{}) : no_node;
  }
  /// The node of these contents, made if it is new; `no_node` when there are no more, or no memory for keys.
  [[nodiscard]] node_id find_or_add(const link_type& before, std::uint64_t hash,
                                    const block_contents& contents) noexcept {
    const auto known = find(before, hash, contents);
    return known != no_node ? known : add(before, hash, contents);
  }
  /// A node of contents that `find` does not know; `no_node` when there are no more, or no memory for keys.
  [[nodiscard]] node_id add(const link_type& before, std::uint64_t hash, const block_contents& contents) noexcept {
    if (is_full()) {
      return no_node;
    }
    const auto added = vacant_[num_vacant_ - 1];
    if (!contents.keys.empty() && !index_.assign_keys(added, contents.keys)) {
      return no_node;
    }
    --num_vacant_;
    detail::copy_tokens(contents.tokens, index_.tokens(added));
    index_.publish_first(added, before, hash);
    auto& here = at(added) = {};
    if (before.node != no_node) {
      here.depth = at(before.node).depth + 1;
      here.next = first_child(before.node);
      if (here.next != no_node) {
        at(here.next).previous = added;
      }
      index_.set_first_child(before.node, added);
    }
    return added;
  }
  /// Prefetches for `add`, before which so many are added. Returns the node, or `no_node` if there are no more.
  [[gnu::always_inline]] node_id prefetch_addition(std::size_t ahead, std::uint64_t hash) const noexcept {
    if (ahead >= num_vacant_) {
      return no_node;
    }
    const auto node = vacant_[num_vacant_ - 1 - ahead];
    index_.prefetch_bucket(hash);
    __builtin_prefetch(index_.tokens(node).data(), 1);
    return node;
  }

  /// Prefetches for `prune`.
  [[gnu::always_inline]] void prefetch_removal(node_id node) const noexcept {
    index_.prefetch_links(node);
    __builtin_prefetch(&at(node), 1);
  }

  void hold(node_id node) noexcept { at(node).holders_and_mark += one_holder; }
  /// `prune` it next.
  void let_go(node_id node) noexcept { at(node).holders_and_mark -= one_holder; }
  [[nodiscard]] std::uint32_t num_holders(node_id node) const noexcept {
    return at(node).holders_and_mark / one_holder;
  }

  /// A mark of the user's, which a new node lacks.
  [[nodiscard]] bool is_marked(node_id node) const noexcept { return (at(node).holders_and_mark & marked_bit) != 0; }
  void mark(node_id node, bool marked) noexcept {
    auto& word = at(node).holders_and_mark;
    word = (word & ~marked_bit) | (marked ? marked_bit : 0);
  }

  [[nodiscard]] bool is_withdrawn(node_id node) const noexcept { return index_.withdrawn(node); }
  /// False when it was withdrawn before.
  bool withdraw(node_id node) noexcept { return index_.withdraw(node); }

  /// Calls `visit(node)` on a node and those that continue it; goes on below those for which it returns true.
  template <class Visit>
  void walk_below(node_id top, Visit&& visit) const noexcept {
    for (auto id = top;;) {
      if (visit(id) && first_child(id) != no_node) {
        id = first_child(id);
        continue;
      }
      while (id != top && next(id) == no_node) {
        id = parent(id);
      }
      if (id == top) {
        return;
      }
      id = next(id);
    }
  }
  template <class Visit>
  void for_each_below(node_id top, Visit&& visit) const noexcept {
    walk_below(top, [&](node_id node) {
      visit(node);
      return true;
    });
  }
  /// Calls `visit(node)` on every node, which may remove any. Linear in the nodes.
  template <class Visit>
  void for_each(Visit&& visit) const noexcept(noexcept(visit(no_node))) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (index_.is_published(to_node(i))) {
        visit(to_node(i));
      }
    }
  }

  /// Removes a node that nothing needs, and then its ancestors of which that is true.
  template <class IsUsed>
  [[gnu::always_inline]] void prune(node_id id, IsUsed&& is_used) noexcept {
    if (id != no_node && !is_needed(id, is_used)) {
      remove_upwards(id, is_used);
    }
  }
  /// Removes what nothing needs of a tree, those that continue a node before the node, and then its ancestors.
  template <class IsUsed>
  void prune_below(node_id top, IsUsed&& is_used) noexcept {
    for (auto id = first_leaf(top); id != top;) {
      const auto after = next(id) != no_node ? first_leaf(next(id)) : parent(id);
      if (!is_needed(id, is_used)) {
        remove(id);
      }
      id = after;
    }
    prune(top, is_used);
  }

  /// During its lifetime nodes are removed but none is found or added: they leave the index a few at a time, so that
  /// the cache lines that this touches come meanwhile.
  [[nodiscard]] auto delay_removals() noexcept { return removals{*this}; }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return index_.metadata_bytes() + nodes_.size() * (sizeof(node_facts) + sizeof(node_id));
  }

 protected:
  template <class IsUsed>
  [[nodiscard]] bool is_needed(node_id id, IsUsed& is_used) const noexcept {
    return is_used(id) || num_holders(id) != 0 || first_child(id) != no_node;
  }
  /// Removes a node that nothing needs.
  [[gnu::always_inline]] void remove(node_id id) noexcept {
    index_.prefetch_erasure(id);
    // Two loads: one of both would wait for the store of one, or of the holders, just before.
    const auto after = at(id).next;
    const auto before = at(id).previous;
    if (after != no_node) {
      at(after).previous = before;
    }
    if (before != no_node) {
      at(before).next = after;
    } else if (const auto above = parent(id); above != no_node) {
      index_.set_first_child(above, after);
    }
    vacant_[num_vacant_++] = id;
    if (++num_removed_ > most_delayed_) {
      erase_removed(most_delayed_ / 2);
    }
  }

 private:
  static constexpr auto marked_bit = std::uint32_t{1};
  static constexpr auto one_holder = std::uint32_t{2};

  class [[nodiscard]] removals {
   public:
    explicit removals(node_tree& tree) noexcept : tree_(tree) { tree_.most_delayed_ = 32; }
    removals(const removals&) = delete;
    removals& operator=(const removals&) = delete;
    ~removals() {
      tree_.erase_removed(0);
      tree_.most_delayed_ = 0;
    }

   private:
    node_tree& tree_;
  };

  struct no_leases {
    [[nodiscard]] bool take(node_id) const noexcept { return true; }
    void end(node_id) const noexcept {}
  };
  struct node_facts {
    node_id next = no_node;
    node_id previous = no_node;
    std::uint32_t depth = 0;
    std::uint32_t holders_and_mark =
        0;  // one word, not two bit-fields: a load of it right after a store of a byte waits
  };

  [[nodiscard]] node_facts& at(node_id id) noexcept { return nodes_[to_index(id)]; }
  [[nodiscard]] const node_facts& at(node_id id) const noexcept { return nodes_[to_index(id)]; }

  /// Removes a node that nothing needs, and those above it as far as nothing needs them.
  template <class IsUsed>
  [[gnu::noinline]] void remove_upwards(node_id id, IsUsed& is_used) noexcept {
    do {
      const auto above = parent(id);
      if (above != no_node) {
        __builtin_prefetch(&at(above), 1);  // of a chain that is eaten from its tail, the next to go
      }
      remove(id);
      id = above;
    } while (id != no_node && !is_needed(id, is_used));
  }

  [[nodiscard]] node_id first_leaf(node_id id) const noexcept {
    while (first_child(id) != no_node) {
      id = first_child(id);
    }
    return id;
  }

  /// Erases the removed nodes from the index, all but so many of the last.
  [[gnu::noinline]] void erase_removed(std::size_t num_delayed) noexcept {
    for (; num_removed_ > num_delayed; --num_removed_) {
      index_.erase(vacant_[num_vacant_ - num_removed_]);
    }
  }

  index_type index_;
  std::vector<node_facts> nodes_;
  std::vector<node_id> vacant_;  // the first of them are, the next one last; the newest may still be in the index
  std::size_t num_vacant_;
  std::size_t num_removed_ = 0;  // of the vacant ones, those in the index
  std::size_t most_delayed_ = 0;
};

}  // namespace pagedkv
