#pragma once

#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// One token of a vocabulary, as engines and tokenizers number them.
using token = std::int32_t;

/// Names one block in every layer. Kernels read it as int32.
enum class block_id : std::int32_t {};

/// Names one node of a prefix index whose nodes are not blocks. The K/V of its tokens may be in blocks of several
/// groups, or in none.
enum class node_id : std::int32_t {};

/// `block_id * block_size + offset`. Kernels read it as int64; a negative slot in a slot mapping means "skip".
enum class slot : std::int64_t {};

/// Names one live sequence. An id that outlives its sequence is recognised as stale, until 2^30 more have used the
/// same entry of the table; so is an id of another cache, except with a probability of 2^-30.
enum class sequence_id : std::uint64_t {};

/// Names one pinned prefix, as a sequence's id names that.
enum class pin_id : std::uint64_t {};

/// Names one request of a tracker for as long as its record is kept; stale afterwards.
enum class request_id : std::uint64_t {};

/// Names one step (a forward pass in flight). Steps are numbered from 1 in the order they begin; a refused one may take
/// a number. `step_id{}` is none.
enum class step_id : std::uint64_t {};

/// Sequences with different salts never share a block. Compared exactly, never by hash.
enum class salt : std::uint64_t { none = 0 };

/// Time since an origin that the caller chooses, in nanoseconds. The library reads no clock of its own.
enum class timestamp : std::int64_t {};

/// No block, no node, and the slot of a token that is not to be written.
inline constexpr auto no_block = block_id{-1};
inline constexpr auto no_node = node_id{-1};
inline constexpr auto skip_slot = slot{-1};

static_assert(sizeof(block_id) == 4 && sizeof(slot) == 8, "kernels read these as int32 and int64");

/// Between ids and positions in arrays of as many entries as there are blocks or nodes.
[[nodiscard]] constexpr std::size_t to_index(block_id block) noexcept { return static_cast<std::size_t>(block); }
[[nodiscard]] constexpr block_id to_block(std::size_t index) noexcept { return static_cast<block_id>(index); }
[[nodiscard]] constexpr std::size_t to_index(node_id node) noexcept { return static_cast<std::size_t>(node); }
[[nodiscard]] constexpr node_id to_node(std::size_t index) noexcept { return static_cast<node_id>(index); }

/// A salt for a tenant that uses an adapter; distinct pairs give distinct salts, and (0, 0) is `salt::none`.
[[nodiscard]] constexpr salt make_salt(std::uint32_t tenant, std::uint32_t adapter) noexcept {
  return static_cast<salt>(std::uint64_t{tenant} << 32 | adapter);
}

/// One block copied or moved to another, in every layer. Laid out as the int32 pairs that kernels read.
struct block_pair {
  std::int32_t source = 0;
  std::int32_t destination = 0;

  friend bool operator==(const block_pair&, const block_pair&) = default;
};

static_assert(sizeof(block_pair) == 8);

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
