#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/policy/hash/concept.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>
#include <pagedkv/prefix/node_tree.hpp>
#include <pagedkv/tier/record_key.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pagedkv {

/// One block's contents in the directory, beside tokens, keys and ancestors.
struct tier_node {
  block_id oldest = no_block;  // of the device blocks with these contents that have nodes
  block_id newest = no_block;
  std::int8_t source = 0;    // tier that its host record was loaded from
  std::uint8_t due = 0;      // bit t: its host record should be written to slower tier 1 + t
  bool loading : 1 = false;  // a record of it is being read
  bool sealed : 1 = false;   // its host record has a header
  bool writing : 1 = false;  // its host record is being written to slower tiers
  bool pending : 1 = false;  // it is to be copied from the device to host memory

  [[nodiscard]] bool on_device() const noexcept { return oldest != no_block; }
};

/// Finds the records that continue a chain: a tree of nodes, each with its place in every tier. A device block has a
/// node only once a tier needs it; a node with one, or with a record, is used. Not thread-safe; only the constructor
/// allocates, except for keys.
template <block_hash Hash>
class tier_directory : public node_tree<single_thread, Hash> {
  using tree = node_tree<single_thread, Hash>;

 public:
  using link_type = typename tree::link_type;
  using tree::index;
  using tree::is_withdrawn;
  using tree::parent;
  static constexpr auto no_place = std::int32_t{-1};

  /// Throws `std::bad_alloc`.
  tier_directory(std::int32_t num_nodes, std::int32_t num_blocks, std::int32_t block_size, std::uint64_t seed,
                 std::size_t num_tiers)
      : tree(num_nodes, block_size, seed),
        num_tiers_(num_tiers),
        nodes_(static_cast<std::size_t>(num_nodes)),
        names_(num_tiers > 1 ? nodes_.size() : 0),
        places_(nodes_.size() * num_tiers, no_place),
        children_(nodes_.size() * num_tiers),
        blocks_(static_cast<std::size_t>(num_blocks)) {}

  [[nodiscard]] block_contents contents(node_id node) const noexcept { return index().contents(node); }
  [[nodiscard]] tier_node& at(node_id node) noexcept { return nodes_[to_index(node)]; }
  [[nodiscard]] const tier_node& at(node_id node) const noexcept { return nodes_[to_index(node)]; }
  /// The key of the chain up to the node's end, and its salt, if there are tiers beside host memory.
  [[nodiscard]] record_key key(node_id node) const noexcept {
    return names_.empty() ? record_key{} : names_[to_index(node)].key;
  }
  [[nodiscard]] salt salt_of(node_id node) const noexcept {
    return names_.empty() ? salt::none : names_[to_index(node)].tag;
  }
  /// The key before a node's contents.
  [[nodiscard]] record_key parent_key(node_id node) const noexcept {
    const auto above = parent(node);
    return above == no_node ? root_key(salt_of(node)) : key(above);
  }

  [[nodiscard]] static std::uint64_t hash(std::uint64_t before, const block_contents& contents) noexcept {
    return tree::index_type::hash(before, contents);
  }
  /// The node with these contents, made if it is new; `no_node` when there are no more, or no memory for its keys.
  [[nodiscard]] node_id find_or_add(const link_type& before, std::uint64_t hash, const block_contents& contents,
                                    salt tag) noexcept {
    const auto num_before = tree::num_alive();
    const auto node = tree::find_or_add(before, hash, contents);
    if (tree::num_alive() != num_before) {
      at(node) = {};
      if (!names_.empty()) {
        names_[to_index(node)] = {{}, tag};
        names_[to_index(node)].key = chained_key(parent_key(node), contents);
      }
    }
    return node;
  }

  /// See `node_tree`.
  [[gnu::always_inline]] void prefetch_addition(std::size_t ahead, std::uint64_t hash) const noexcept {
    if (const auto node = tree::prefetch_addition(ahead, hash); node != no_node) {
      __builtin_prefetch(&at(node), 1);
    }
  }

  /// The node whose contents a device block has, if it has been attached.
  [[nodiscard]] node_id node_of(block_id block) const noexcept { return at(block).node; }
  /// Tells which of two device blocks has had its contents for longer: that of the smaller number.
  [[nodiscard]] std::uint64_t number_of(block_id block) const noexcept { return at(block).number; }
  /// A device block got contents.
  void note_stored(block_id block) noexcept {
    if (!names_.empty()) {
      at(block).number = ++last_number_;
    }
  }
  /// Counts a sequence that shares a device block; returns how many have since it got its contents.
  std::uint32_t count_hit(block_id block) noexcept { return ++at(block).num_hits; }
  [[nodiscard]] std::uint32_t num_hits(block_id block) const noexcept { return at(block).num_hits; }

  void attach(node_id node, block_id block) noexcept {
    auto& here = at(node);
    auto& there = at(block);
    there.node = node;
    there.older = here.newest;
    (here.newest == no_block ? here.oldest : at(here.newest).newer) = block;
    here.newest = block;
  }
  /// A device block lost its contents. Returns its node.
  node_id detach(block_id block) noexcept {
    const auto gone = std::exchange(at(block), {});
    if (gone.node != no_node) {
      (gone.older == no_block ? at(gone.node).oldest : at(gone.older).newer) = gone.newer;
      (gone.newer == no_block ? at(gone.node).newest : at(gone.newer).older) = gone.older;
    }
    return gone.node;
  }
  /// Calls `detached(node)` after each block.
  template <class Detached>
  void detach_all(Detached&& detached) noexcept {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (const auto node = detach(to_block(i)); node != no_node) {
        detached(node);
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
  [[nodiscard]] bool begins_chain(node_id node, salt tag) const noexcept { return index().begins_chain(node, tag); }

  /// Removes a node that nothing needs, and then its ancestors of which that is true.
  void prune(node_id node) noexcept {
    if (index().is_published(node)) {
      tree::prune(node, [this](node_id each) { return at(each).on_device() || has_record(each); });
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return tree::metadata_bytes() + nodes_.size() * sizeof(tier_node) + names_.size() * sizeof(chain_name) +
           places_.size() * (sizeof(std::int32_t) + sizeof(std::uint32_t)) + blocks_.size() * sizeof(device_block);
  }

 private:
  struct chain_name {
    record_key key;
    salt tag{};
  };
  /// A device block, in the list of those with the same node.
  struct device_block {
    node_id node = no_node;
    block_id older = no_block;
    block_id newer = no_block;
    std::uint32_t num_hits = 0;
    std::uint64_t number = 0;  // of the order in which blocks got their contents
  };

  [[nodiscard]] device_block& at(block_id block) noexcept { return blocks_[to_index(block)]; }
  [[nodiscard]] const device_block& at(block_id block) const noexcept { return blocks_[to_index(block)]; }

  void count_in_parent(node_id node, std::size_t tier, int change) noexcept {
    if (const auto above = parent(node); above != no_node) {
      children_[to_index(above) * num_tiers_ + tier] += static_cast<std::uint32_t>(change);
    }
  }

  std::size_t num_tiers_;
  std::uint64_t last_number_ = 0;
  std::vector<tier_node> nodes_;
  std::vector<chain_name> names_;        // of each node, if there are slower tiers
  std::vector<std::int32_t> places_;     // [node][tier]
  std::vector<std::uint32_t> children_;  // [node][tier]: with a record there
  std::vector<device_block> blocks_;
};

}  // namespace pagedkv
