#pragma once

#include <pagedkv/core/chain_link.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/copy_run.hpp>
#include <pagedkv/policy/hash/concept.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>
#include <pagedkv/prefix/prefix_index.hpp>
#include <pagedkv/tier/record_key.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pagedkv {

/// One block's contents in the directory, beside tokens, keys and ancestors.
struct tier_node {
  record_key key;                // of the chain up to its end, if there are tiers beside host memory
  pagedkv::salt salt{};
  block_id oldest = no_block;    // of the device blocks with these contents
  block_id newest = no_block;
  std::uint32_t holders = 0;     // transfers and loads that need the node
  std::uint32_t num_hits = 0;    // sequences that shared a device block of it
  std::uint32_t depth = 0;       // nodes before it in its chain
  std::uint32_t visit = 0;       // of the directory, which found its ancestors in order
  std::int8_t source = 0;        // tier that its host record was loaded from
  bool alive = false;
  bool withdrawn = false;        // no look-up finds it any more
  bool loading = false;          // a record of it is being read
  bool sealed = false;           // its host record has a header
  bool writing = false;          // its host record is being written to slower tiers
  bool pending = false;          // it is to be copied from the device to host memory
  std::uint8_t due = 0;          // bit t: its host record should be written to slower tier 1 + t

  [[nodiscard]] bool on_device() const noexcept { return oldest != no_block; }
};

/// Finds the records that continue a chain: a tree of nodes with exact identities, each with its place in every tier.
/// A node stays while it has a device block, a record, a holder or a child. Contents that can be found have one node.
/// Not thread-safe; only the constructor allocates, except for keys.
template <block_hash Hash>
class tier_directory {
 public:
  using link_type = node_link<node_id>;
  static constexpr auto no_place = std::int32_t{-1};

  /// Throws `std::bad_alloc`.
  tier_directory(std::int32_t num_nodes, std::int32_t num_blocks, std::int32_t block_size, std::uint64_t seed,
                 std::size_t num_tiers)
      : num_tiers_(num_tiers),
        index_(num_nodes, block_size, seed),
        nodes_(static_cast<std::size_t>(num_nodes)),
        places_(nodes_.size() * num_tiers, no_place),
        children_(nodes_.size() * num_tiers),
        blocks_(static_cast<std::size_t>(num_blocks)) {
    vacant_.reserve(nodes_.size());
    for (auto i = nodes_.size(); i > 0; --i) {
      vacant_.push_back(to_node(i - 1));
    }
  }

  [[nodiscard]] link_type root(salt tag) const noexcept { return index_.root(tag); }
  [[nodiscard]] link_type link(node_id node) const noexcept { return index_.link(node); }
  [[nodiscard]] block_contents contents(node_id node) const noexcept { return index_.contents(node); }
  [[nodiscard]] node_id parent(node_id node) const noexcept { return index_.parent(node); }
  [[nodiscard]] tier_node& at(node_id node) noexcept { return nodes_[to_index(node)]; }
  [[nodiscard]] const tier_node& at(node_id node) const noexcept { return nodes_[to_index(node)]; }
  [[nodiscard]] std::size_t num_nodes() const noexcept { return nodes_.size(); }
  [[nodiscard]] bool is_full() const noexcept { return vacant_.empty(); }

  [[nodiscard]] static std::uint64_t hash(std::uint64_t before, const block_contents& contents) noexcept {
    return prefix_index<single_thread, Hash, node_id>::hash(before, contents);
  }
  [[nodiscard]] node_id find(const link_type& before, std::uint64_t hash,
                             const block_contents& contents) const noexcept {
    return index_.find(before, hash, contents, no_leases{});
  }
  /// The node with these contents, made if it is new; `no_node` when there are no more, or no memory for its keys.
  [[nodiscard]] node_id find_or_add(const link_type& before, std::uint64_t hash, const block_contents& contents,
                                    salt tag) noexcept {
    const auto may_be_known = before.node == no_node || index_.has_children(before.node);
    const auto known = may_be_known ? find(before, hash, contents) : no_node;
    if (known != no_node || vacant_.empty()) {
      return known;
    }
    const auto added = vacant_.back();
    if (!contents.keys.empty() && !index_.assign_keys(added, contents.keys)) {
      return no_node;
    }
    vacant_.pop_back();
    copy_run(contents.tokens, index_.tokens(added));
    index_.publish_first(added, before, hash);
    auto& here = at(added) = {};
    here.salt = tag;
    here.alive = true;
    here.depth = before.node == no_node ? 0 : at(before.node).depth + 1;
    if (num_tiers_ > 1) {
      here.key = chained_key(parent_key(added), contents);
    }
    return added;
  }

  void hold(node_id node) noexcept { ++at(node).holders; }
  void let_go(node_id node) noexcept { --at(node).holders; }

  /// The node whose contents a device block has.
  [[nodiscard]] node_id node_of(block_id block) const noexcept { return at(block).node; }
  /// Tells which of two blocks that have nodes has had its own for longer: that of the smaller number.
  [[nodiscard]] std::uint64_t number_of(block_id block) const noexcept { return at(block).number; }
  void attach(node_id node, block_id block) noexcept {
    auto& here = at(node);
    at(block) = {node, here.newest, no_block, ++last_number_};
    (here.newest == no_block ? here.oldest : at(here.newest).newer) = block;
    here.newest = block;
  }
  /// Requires that the block has a node; returns it.
  node_id detach(block_id block) noexcept {
    const auto [node, older, newer, number] = std::exchange(at(block), {});
    (older == no_block ? at(node).oldest : at(older).newer) = newer;
    (newer == no_block ? at(node).newest : at(newer).older) = older;
    return node;
  }
  /// Calls `detached(node)` after each block.
  template <class Detached>
  void detach_all(Detached&& detached) noexcept {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].node != no_node) {
        detached(detach(to_block(i)));
      }
    }
  }
  /// Compaction moved a block to one without a node.
  void rename_block(block_id from, block_id to) noexcept {
    const auto moved = std::exchange(at(from), {});
    at(to) = moved;
    if (moved.node != no_node) {
      (moved.older == no_block ? at(moved.node).oldest : at(moved.older).newer) = to;
      (moved.newer == no_block ? at(moved.node).newest : at(moved.newer).older) = to;
    }
  }

  [[nodiscard]] std::int32_t place(node_id node, std::size_t tier) const noexcept {
    return places_[to_index(node) * num_tiers_ + tier];
  }
  void set_place(node_id node, std::size_t tier, std::int32_t place) noexcept {
    places_[to_index(node) * num_tiers_ + tier] = place;
    count_in_parent(node, tier, 1);
  }
  void clear_place(node_id node, std::size_t tier) noexcept {
    places_[to_index(node) * num_tiers_ + tier] = no_place;
    count_in_parent(node, tier, -1);
  }
  /// Whether a record of the same tier continues the node's.
  [[nodiscard]] bool has_children(node_id node, std::size_t tier) const noexcept {
    return children_[to_index(node) * num_tiers_ + tier] != 0;
  }
  [[nodiscard]] bool has_record(node_id node) const noexcept {
    const auto first = places_.begin() + static_cast<std::ptrdiff_t>(to_index(node) * num_tiers_);
    return std::any_of(first, first + static_cast<std::ptrdiff_t>(num_tiers_),
                       [](std::int32_t place) { return place != no_place; });
  }

  void withdraw(node_id node) noexcept {
    at(node).withdrawn = true;
    index_.withdraw(node);
  }
  /// Withdraws every node with a withdrawn ancestor. Linear in the nodes.
  void withdraw_descendants() noexcept {
    ++visit_;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].alive) {
        withdraw_behind(to_node(i));
      }
    }
  }
  [[nodiscard]] bool begins_chain(node_id node, salt tag) const noexcept { return index_.begins_chain(node, tag); }

  /// The key before a node's contents.
  [[nodiscard]] record_key parent_key(node_id node) const noexcept {
    const auto above = parent(node);
    return above == no_node ? root_key(at(node).salt) : at(above).key;
  }

  /// Removes a node that nothing needs, and then its ancestors of which that is true.
  void prune(node_id node) noexcept {
    while (node != no_node && is_useless(node)) {
      const auto above = parent(node);
      index_.detach(node);
      index_.erase(node);
      at(node) = {};
      vacant_.push_back(node);
      node = above;
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return index_.metadata_bytes() + nodes_.size() * (sizeof(tier_node) + sizeof(node_id)) +
           places_.size() * (sizeof(std::int32_t) + sizeof(std::uint32_t)) + blocks_.size() * sizeof(device_block);
  }

 private:
  struct no_leases {
    [[nodiscard]] bool take(node_id) const noexcept { return true; }
    void end(node_id) const noexcept {}
  };

  /// A device block, in the list of those with the same node.
  struct device_block {
    node_id node = no_node;
    block_id older = no_block;
    block_id newer = no_block;
    std::uint64_t number = 0;  // of the order in which blocks got their nodes
  };

  [[nodiscard]] device_block& at(block_id block) noexcept { return blocks_[to_index(block)]; }
  [[nodiscard]] const device_block& at(block_id block) const noexcept { return blocks_[to_index(block)]; }

  [[nodiscard]] bool is_useless(node_id node) const noexcept {
    const auto& here = at(node);
    return here.alive && !here.on_device() && here.holders == 0 && !index_.has_children(node) && !has_record(node);
  }

  /// Looks at each ancestor once in a visit.
  void withdraw_behind(node_id node) noexcept {
    auto end = node;
    while (end != no_node && !at(end).withdrawn && at(end).visit != visit_) {
      end = parent(end);
    }
    const auto is_stale = end != no_node && at(end).withdrawn;
    for (auto next = node; next != end; next = parent(next)) {
      if (is_stale) {
        withdraw(next);
      } else {
        at(next).visit = visit_;
      }
    }
  }

  void count_in_parent(node_id node, std::size_t tier, int change) noexcept {
    if (const auto above = parent(node); above != no_node) {
      children_[to_index(above) * num_tiers_ + tier] += static_cast<std::uint32_t>(change);
    }
  }

  std::size_t num_tiers_;
  std::uint32_t visit_ = 0;
  std::uint64_t last_number_ = 0;
  prefix_index<single_thread, Hash, node_id> index_;
  std::vector<tier_node> nodes_;
  std::vector<std::int32_t> places_;     // [node][tier]
  std::vector<std::uint32_t> children_;  // [node][tier]: with a record there
  std::vector<device_block> blocks_;
  std::vector<node_id> vacant_;
};

}  // namespace pagedkv
