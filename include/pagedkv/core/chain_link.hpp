#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstdint>

namespace pagedkv {

/// The end of a chain of nodes: the published node that the next one continues, or the root of a salt. `Node` is the
/// type of the index's ids: see `prefix_index`.
template <class Node>
struct node_link {
  std::uint64_t hash = 0;      // chained
  std::uint64_t identity = 0;  // of the contents from the root to here; of a root: its salt
  Node node = Node{-1};        // -1 for a root

  friend bool operator==(const node_link&, const node_link&) = default;
};

/// Where every node is a block.
using chain_link = node_link<block_id>;

}  // namespace pagedkv
