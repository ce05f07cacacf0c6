#pragma once

#include <pagedkv/core/ids.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

/// Histories of concurrent operations on a cache, and a check whether one order of them, each at one moment between its
/// call and its return, explains every result (Herlihy and Wing, "Linearizability", TOPLAS 1990; the search is Wing and
/// Gong's, 1993).
///
/// Some operations of the cache do not happen at one moment. The model permits exactly this:
///
/// - Look-ups, also those of `create_sequence`, which allocates at a later moment: one may miss blocks that no sequence
///   holds, since these may be evicted at any time, and blocks published after its call. Every block it returns exists.
/// - Twins: where several blocks with equal contents have been published, a look-up may miss the continuations of one
///   of them, since two blocks published at the same moment have different identities.
/// - Refusal: `capacity_exhausted` is right if the blocks needed, those in use, and those that operations which overlap
///   the refused one may touch meanwhile, are more than the pool has.
/// - Copies: two appends to one shared block that overlap may both copy it. Neither may write it while both hold it.
namespace pagedkv::testing {

enum class action : std::uint8_t { create, append, commit, fork, truncate, release, look_up };

/// One operation: its arguments, its times, and its result.
struct operation {
  action kind{};
  std::uint64_t called = 0;
  std::uint64_t returned = 0;
  std::uint64_t sequence = 0;   // created or changed
  std::uint64_t source = 0;     // fork: the source
  std::vector<token> tokens;    // create, append, look_up
  std::size_t num_tokens = 0;   // commit, truncate: up to here; create, look_up: found in the cache
  bool refused = false;         // for lack of blocks
  std::vector<block_id> table;  // of the sequence, afterwards
  std::size_t num_touched = 0;  // blocks that it may hold at some moment
};

/// A cache that executes one operation at a time, as far as block tables show it.
class cache_by_the_book {
 public:
  cache_by_the_book(std::size_t block_size, std::size_t num_blocks) : block_size_(block_size), blocks_(num_blocks) {}

  /// Whether the operation may have had its result now, while operations that overlap it touch up to `num_elsewhere`
  /// blocks. If so, the model executes it.
  [[nodiscard]] bool apply(const operation& o, std::size_t num_elsewhere);

  friend auto operator<=>(const cache_by_the_book&, const cache_by_the_book&) = default;

 private:
  using text = std::vector<token>;

  struct block {
    std::size_t references = 0;
    text published;           // everything from the root to the block's end; empty if it is not published
    std::uint64_t since = 0;  // the return of the commit that published it

    friend auto operator<=>(const block&, const block&) = default;
  };

  struct sequence {
    text tokens;
    std::vector<block_id> table;

    friend auto operator<=>(const sequence&, const sequence&) = default;
  };

  [[nodiscard]] bool create(const operation& o, std::size_t num_elsewhere);
  [[nodiscard]] bool append(const operation& o, std::size_t num_elsewhere);
  [[nodiscard]] bool commit(const operation& o);
  [[nodiscard]] bool fork(const operation& o);
  [[nodiscard]] bool truncate(const operation& o);
  [[nodiscard]] bool release(const operation& o);
  [[nodiscard]] bool look_up(const operation& o) const;

  [[nodiscard]] block& at(block_id id) { return blocks_[to_index(id)]; }
  [[nodiscard]] const block& at(block_id id) const { return blocks_[to_index(id)]; }
  [[nodiscard]] std::size_t blocks_for(std::size_t num_tokens) const {
    return (num_tokens + block_size_ - 1) / block_size_;
  }
  [[nodiscard]] text prefix(const text& tokens, std::size_t num_blocks) const;
  [[nodiscard]] bool must_be_found(const operation& o, std::size_t num_blocks) const;
  [[nodiscard]] bool may_miss_the_rest(const operation& o, std::size_t num_found, std::size_t num_sought) const;
  [[nodiscard]] bool take_unused(block_id id);
  void drop(block_id id) { --at(id).references; }
  [[nodiscard]] std::size_t num_in_use() const;
  [[nodiscard]] bool refusal_is_right(std::size_t num_needed, std::size_t num_elsewhere) const;

  std::size_t block_size_;
  std::vector<block> blocks_;
  std::map<std::uint64_t, sequence> sequences_;
  std::set<text> twinned_;  // texts that two blocks have been published with at once
};

/// Whether some order explains the operations, starting from an empty cache. At most 64 of them.
[[nodiscard]] bool linearizable(std::span<const operation> history, std::size_t block_size, std::size_t num_blocks);

/// A line for each operation, in the order of their calls.
[[nodiscard]] std::string to_text(std::vector<operation> history);

}  // namespace pagedkv::testing
