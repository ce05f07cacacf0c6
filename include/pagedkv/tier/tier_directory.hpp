#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/policy/hash/concept.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>
#include <pagedkv/prefix/node_tree.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_table.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv {

/// Finds the records that continue a chain of a cache with one group: a tree of nodes, one block of tokens and one
/// record each. A device block has a node only once a tier needs it. Not thread-safe; only the constructor allocates,
/// except for keys.
template <block_hash Hash>
class tier_directory : public record_table<node_tree<single_thread, Hash>, true> {
  using tree_type = node_tree<single_thread, Hash>;
  using table = record_table<tree_type, true>;

 public:
  using link_type = typename tree_type::link_type;
  using table::at;

  /// Throws `std::bad_alloc`.
  tier_directory(std::int32_t num_nodes, std::int32_t num_blocks, std::int32_t block_size, std::uint64_t seed,
                 std::size_t num_tiers)
      : table(tree_, static_cast<std::size_t>(num_nodes), std::array{1}, num_tiers),
        tree_(num_nodes, block_size, seed),
        block_size_(static_cast<std::size_t>(block_size)),
        oldest_(static_cast<std::size_t>(num_nodes), no_block),
        blocks_(static_cast<std::size_t>(num_blocks)) {}

  [[nodiscard]] static std::uint64_t hash(std::uint64_t before, const block_contents& contents) noexcept {
    return tree_type::index_type::hash(before, contents);
  }
  [[nodiscard]] node_id find(const link_type& before, std::uint64_t hash,
                             const block_contents& contents) const noexcept {
    return tree_.find(before, hash, contents);
  }
  /// Prefetches for `find_or_add` of new contents, so many of which are added before.
  [[gnu::always_inline]] void prefetch_addition(std::size_t ahead, std::uint64_t hash) const noexcept {
    if (const auto node = tree_.prefetch_addition(ahead, hash); node != no_node) {
      __builtin_prefetch(&at(table::record_of(node)), 1);
    }
  }
  /// Removes a node that nothing needs, and then its ancestors of which that is true.
  void prune(node_id node) noexcept {
    if (tree_.index().is_published(node)) {
      tree_.prune(node, [](node_id) { return false; });
    }
  }

  [[nodiscard]] std::size_t tokens_per_node() const noexcept { return block_size_; }
  /// Whether a record of this index may hold so many tokens from a position on.
  [[nodiscard]] bool may_hold(std::int64_t index, std::int64_t, std::size_t num_tokens) const noexcept {
    return index == 0 && num_tokens == block_size_;
  }
  [[nodiscard]] record_key key_in_tiers(record_id record) const noexcept { return table::key(table::node_of(record)); }
  /// The contents of a record, as long as it is held.
  [[nodiscard]] record_identity identity(record_id record, std::int32_t) const noexcept {
    const auto node = table::node_of(record);
    return {table::key(node), table::parent_key(node), table::salt_of(node),
            std::int64_t{tree_.depth(node)} * static_cast<std::int64_t>(block_size_), tree_.index().contents(node)};
  }

  /// The device has the contents of a record, too.
  [[nodiscard]] bool on_device(record_id record) const noexcept { return oldest(table::node_of(record)) != no_block; }
  /// Of the device blocks with a node's contents that have nodes.
  [[nodiscard]] block_id oldest(node_id node) const noexcept { return oldest_[to_index(node)]; }
  /// The node whose contents a device block has, if it has been attached.
  [[nodiscard]] node_id node_of_block(block_id block) const noexcept { return at(block).node; }
  /// Tells which of two device blocks has had its contents for longer: that of the smaller number.
  [[nodiscard]] std::uint64_t number_of(block_id block) const noexcept { return at(block).number; }
  /// A device block got contents.
  void note_stored(block_id block) noexcept { at(block).number = ++last_number_; }
  /// Counts a sequence that shares a device block; returns how many have since it got its contents.
  std::uint32_t count_hit(block_id block) noexcept { return ++at(block).num_hits; }
  [[nodiscard]] std::uint32_t num_hits(block_id block) const noexcept { return at(block).num_hits; }

  void attach(node_id node, block_id block) noexcept {
    auto& first = oldest_[to_index(node)];
    auto& there = at(block);
    there.node = node;
    if (first == no_block) {
      first = there.older = block;
    } else {
      auto& newest = at(first).older;
      at(newest).newer = block;
      there.older = std::exchange(newest, block);
    }
    tree_.hold(node);
  }
  /// A device block lost its contents. Returns its node, to be pruned.
  node_id detach(block_id block) noexcept {
    const auto gone = std::exchange(at(block), {});
    if (gone.node != no_node) {
      auto& first = oldest_[to_index(gone.node)];
      if (first == block) {
        first = gone.newer;
      } else {
        at(gone.older).newer = gone.newer;
      }
      if (first != no_block) {
        at(gone.newer == no_block ? first : gone.newer).older = gone.older;
      }
      tree_.let_go(gone.node);
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
      auto& first = oldest_[to_index(moved.node)];
      (first == from ? first : at(moved.older).newer) = to;
      at(moved.newer == no_block ? first : moved.newer).older = to;
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return tree_.metadata_bytes() + table::metadata_bytes() + oldest_.size() * sizeof(block_id) +
           blocks_.size() * sizeof(device_block);
  }

 private:
  /// A device block, in the list of those with the same node.
  struct device_block {
    node_id node = no_node;
    block_id older = no_block;  // of the oldest one: the newest
    block_id newer = no_block;
    std::uint32_t num_hits = 0;
    std::uint64_t number = 0;  // of the order in which blocks got their contents
  };

  [[nodiscard]] device_block& at(block_id block) noexcept { return blocks_[to_index(block)]; }
  [[nodiscard]] const device_block& at(block_id block) const noexcept { return blocks_[to_index(block)]; }

  tree_type tree_;
  std::size_t block_size_;
  std::uint64_t last_number_ = 0;
  std::vector<block_id> oldest_;  // block of each node
  std::vector<device_block> blocks_;
};

}  // namespace pagedkv
