#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv {

/// Doubly linked lists, from oldest to newest, of block ids that share one array of links: an id is in one list at
/// most. Every operation is constant time; 8 bytes per block.
class block_lists {
 public:
  using list_index = std::uint32_t;

  block_lists(std::int32_t num_blocks, list_index num_lists)
      : first_list_(static_cast<std::uint32_t>(num_blocks)), nodes_(first_list_ + std::size_t{num_lists}) {
    for (auto i = std::size_t{0}; i < nodes_.size(); ++i) {
      nodes_[i] = detached(i);
    }
  }

  [[nodiscard]] bool linked(block_id block) const noexcept { return nodes_[to_index(block)].newer != to_index(block); }
  [[nodiscard]] bool empty(list_index list = 0) const noexcept { return oldest(list) == no_block; }
  [[nodiscard]] block_id oldest(list_index list = 0) const noexcept { return to_id(nodes_[head(list)].newer); }

  [[nodiscard]] block_id newest(list_index list = 0) const noexcept { return to_id(nodes_[head(list)].older); }

  /// The next newer id in the same list, or `no_block`. The id is linked.
  [[nodiscard]] block_id newer(block_id block) const noexcept { return to_id(nodes_[to_index(block)].newer); }

  /// The id is not linked.
  void push_newest(block_id block, list_index list = 0) noexcept { link_after(nodes_[head(list)].older, block); }
  void push_oldest(block_id block, list_index list = 0) noexcept { link_after(head(list), block); }

  /// Does nothing when the id is not linked.
  void unlink(block_id block) noexcept {
    // Two loads: one of both halves would wait for the store of one by the neighbour that was unlinked just before.
    const auto older = nodes_[to_index(block)].older;
    const auto newer = nodes_[to_index(block)].newer;
    nodes_[older].newer = newer;
    nodes_[newer].older = older;
    nodes_[to_index(block)] = detached(to_index(block));
  }

  /// Puts `to`, which is not linked, in the place of `from`, if that is linked.
  void replace(block_id from, block_id to) noexcept {
    if (linked(from)) {
      link_after(to_node(from), to);
      unlink(from);
    }
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return nodes_.capacity() * sizeof(node); }

 private:
  // A list is a ring through a node of its own, behind the nodes of the blocks: no case is special.
  struct node {
    std::uint32_t older;
    std::uint32_t newer;
  };

  [[nodiscard]] static node detached(std::size_t i) noexcept {
    return {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i)};
  }
  [[nodiscard]] static std::uint32_t to_node(block_id block) noexcept { return static_cast<std::uint32_t>(block); }
  [[nodiscard]] std::uint32_t head(list_index list) const noexcept { return first_list_ + list; }
  [[nodiscard]] block_id to_id(std::uint32_t i) const noexcept { return i < first_list_ ? to_block(i) : no_block; }

  void link_after(std::uint32_t older, block_id block) noexcept {
    const auto newer = nodes_[older].newer;
    nodes_[to_index(block)] = {older, newer};
    nodes_[older].newer = to_node(block);
    nodes_[newer].older = to_node(block);
  }

  std::uint32_t first_list_;
  std::vector<node> nodes_;
};

}  // namespace pagedkv
