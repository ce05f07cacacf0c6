#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv {

/// Doubly linked lists, from oldest to newest, of block ids that share one array of links: an id is in one list at
/// most. `Beside` is what the owner keeps for a block, in the cache line of its links. Every operation is constant time;
/// 8 bytes per block and those of `Beside`.
template <class Beside>
class basic_block_lists {
 public:
  using list_index = std::uint32_t;

  basic_block_lists(std::int32_t num_blocks, list_index num_lists)
      : first_list_(static_cast<std::uint32_t>(num_blocks)), nodes_(first_list_ + std::size_t{num_lists}) {
    for (auto i = std::size_t{0}; i < nodes_.size(); ++i) {
      detach(i);
    }
  }

  [[nodiscard]] Beside& beside(block_id block) noexcept { return nodes_[to_index(block)].beside; }
  [[nodiscard]] const Beside& beside(block_id block) const noexcept { return nodes_[to_index(block)].beside; }

  [[nodiscard]] bool linked(block_id block) const noexcept { return nodes_[to_index(block)].newer != to_index(block); }
  [[nodiscard]] bool empty(list_index list = 0) const noexcept { return oldest(list) == no_block; }
  [[nodiscard]] block_id oldest(list_index list = 0) const noexcept { return to_id(nodes_[head(list)].newer); }

  [[nodiscard]] block_id newest(list_index list = 0) const noexcept { return to_id(nodes_[head(list)].older); }

  /// The next newer id in the same list, or `no_block`. The id is linked.
  [[nodiscard]] block_id newer(block_id block) const noexcept { return to_id(nodes_[to_index(block)].newer); }

  /// The id is not linked.
  void push_newest(block_id block, list_index list = 0) noexcept {
    link(nodes_[head(list)].older, block, head(list));
  }
  void push_oldest(block_id block, list_index list = 0) noexcept {
    link(head(list), block, nodes_[head(list)].newer);
  }

  /// Does nothing when the id is not linked.
  void unlink(block_id block) noexcept {
    // Two loads: one of both halves would wait for the store of one by the neighbour that was unlinked just before.
    const auto older = nodes_[to_index(block)].older;
    const auto newer = nodes_[to_index(block)].newer;
    nodes_[older].newer = newer;
    nodes_[newer].older = older;
    detach(to_index(block));
  }

  /// Puts `to`, which is not linked, in the place of `from`, if that is linked.
  void replace(block_id from, block_id to) noexcept {
    if (linked(from)) {
      link(to_node(from), to, nodes_[to_index(from)].newer);
      unlink(from);
    }
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return nodes_.capacity() * sizeof(node); }

 private:
  // A list is a ring through a node of its own, behind the nodes of the blocks: no case is special.
  struct node {
    std::uint32_t older = 0;
    std::uint32_t newer = 0;
    [[no_unique_address]] Beside beside{};
  };

  void detach(std::size_t i) noexcept { nodes_[i].older = nodes_[i].newer = static_cast<std::uint32_t>(i); }
  [[nodiscard]] static std::uint32_t to_node(block_id block) noexcept { return static_cast<std::uint32_t>(block); }
  [[nodiscard]] std::uint32_t head(list_index list) const noexcept { return first_list_ + list; }
  [[nodiscard]] block_id to_id(std::uint32_t i) const noexcept { return i < first_list_ ? to_block(i) : no_block; }

  void link(std::uint32_t older, block_id block, std::uint32_t newer) noexcept {
    nodes_[to_index(block)].older = older;
    nodes_[to_index(block)].newer = newer;
    nodes_[older].newer = to_node(block);
    nodes_[newer].older = to_node(block);
  }

  std::uint32_t first_list_;
  std::vector<node> nodes_;
};

struct nothing_beside {};

using block_lists = basic_block_lists<nothing_beside>;

}  // namespace pagedkv
