#pragma once

#include <pagedkv/core/chain_link.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/copy_run.hpp>
#include <pagedkv/policy/hash/concept.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/prefix/bucket_table.hpp>
#include <pagedkv/prefix/key_store.hpp>
#include <pagedkv/prefix/token_store.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

namespace pagedkv {

/// Finds the published block that continues a chain with given tokens and keys.
///
/// Exactness: published contents have an *identity*, a number never used twice. Blocks with equal tokens and keys after
/// equal identities share one identity; all other contents get a new one. A block matches only if its tokens, its keys
/// and the identity before it are equal to the requested ones; by induction, the whole chain is equal. Hashes only
/// select candidates. (Under a concurrent family, two threads that publish equal contents at once may get two
/// identities: a lost hit, never a wrong one.)
///
/// Thread safety: only the sequence that allocated a block writes its tokens, keys and links, before the block is
/// published. Others read them only under a reference or a lease: `leases.take(id)` takes one, or refuses, and
/// `leases.end(id)` ends it.
template <locking Locking, block_hash Hash>
class prefix_index {
 public:
  prefix_index(std::int32_t num_blocks, std::int32_t block_size, std::uint64_t seed)
      : tokens_(num_blocks, block_size),
        keys_(num_blocks),
        table_(num_blocks),
        num_blocks_(static_cast<std::size_t>(num_blocks)),
        nodes_(std::make_unique<node[]>(num_blocks_)),
        seed_(seed) {}

  [[nodiscard]] chain_link root(salt tag) const noexcept {
    const auto words = std::to_array({upper(static_cast<std::uint64_t>(tag)), lower(static_cast<std::uint64_t>(tag))});
    return {Hash::hash(seed_, words), static_cast<std::uint64_t>(tag), no_block};
  }

  [[nodiscard]] chain_link link(block_id block) const noexcept {
    const auto& here = node_of(block);
    return {here.hash, identity_of(here), block};
  }

  /// Of one block, chained. A key is mixed in ahead of the tokens, as the position and the two words of the value, each
  /// in two halves, the upper one first.
  [[nodiscard]] static std::uint64_t hash(std::uint64_t previous, const block_contents& contents) noexcept {
    for (const auto& [position, value] : contents.keys) {
      const auto words =
          std::to_array({upper(static_cast<std::uint64_t>(position)), lower(static_cast<std::uint64_t>(position)),
                         upper(value[0]), lower(value[0]), upper(value[1]), lower(value[1])});
      previous = Hash::hash(previous, words);
    }
    return Hash::hash(previous, contents.tokens);
  }

  /// The block with these contents right after `before`, under a lease; or `no_block`. `hash` is theirs, chained.
  template <class Leases>
  [[nodiscard]] block_id find(const chain_link& before, std::uint64_t hash, const block_contents& contents,
                              Leases&& leases) const noexcept {
    return table_.find(hash, [&](block_id block) { return is_match(block, before, hash, contents, leases); });
  }

  /// First and second part of a look-up in three parts, which hide memory latency. The third part is `find_near`: like
  /// `find`, but it tries the second part's result first.
  void prefetch_bucket(std::uint64_t hash) const noexcept { table_.prefetch(hash); }
  [[nodiscard]] block_id prefetch_block(std::uint64_t hash) const noexcept {
    return table_.find(hash, [&](block_id block) {
      __builtin_prefetch(&node_of(block));
      __builtin_prefetch(tokens_.block(block).data());
      return true;
    });
  }
  template <class Leases>
  [[nodiscard]] block_id find_near(block_id candidate, const chain_link& before, std::uint64_t hash,
                                   const block_contents& contents, Leases&& leases) const noexcept {
    return candidate != no_block && is_match(candidate, before, hash, contents, leases)
               ? candidate
               : find(before, hash, contents, leases);
  }

  /// Gives an unpublished block the keys that it is about to be published with. False when memory is exhausted. Blocks
  /// that are not published after all are to be cleared of them.
  [[nodiscard]] bool assign_keys(block_id block, std::span<const prefix_key> keys) noexcept {
    return keys_.assign(block, keys);
  }
  /// Keeps the hash of an unpublished block, for `link`.
  void note_hash(block_id block, std::uint64_t hash) noexcept { node_of(block).hash = hash; }
  void clear_keys(block_id block) noexcept { keys_.clear(block); }

  /// Enters a full block with its `contents`. The caller has a reference to it and marks it published afterwards.
  /// Returns its twin, a published block of equal contents, under a lease, which the caller ends after it has asked
  /// `was_withdrawn`; `no_block` means that the contents are new, so that nothing can have been published after them.
  template <class Leases>
  block_id publish(block_id block, const chain_link& before, std::uint64_t hash, Leases&& leases) noexcept {
    const auto twin = find(before, hash, contents(block), leases);
    if (twin == no_block) {
      publish_first(block, before, hash);
      return no_block;
    }
    enter(block, before, hash, identity_of(node_of(twin)));
    return twin;
  }

  /// The same for new contents: `before` is new and no block has been published after it. Skips the search for a twin.
  void publish_first(block_id block, const chain_link& before, std::uint64_t hash) noexcept {
    enter(block, before, hash, next_identity_.fetch_add(1, std::memory_order_relaxed));
  }

  /// Whether another published block, for which `stays(id)` is true, has the same contents as this one, on which the
  /// caller has a lease. Other threads may erase the twin at any time.
  template <class Stays>
  [[nodiscard]] bool has_twin(block_id block, Stays&& stays) const noexcept {
    const auto& here = node_of(block);
    const auto identity = identity_of(here);
    const auto is_twin = [&](block_id other) {
      return other != block && identity_of(node_of(other)) == identity && stays(other);
    };
    return table_.find(here.hash, is_twin) != no_block;
  }

  /// Prefetches for `publish`.
  void prefetch_publication(block_id block, std::uint64_t hash) const noexcept {
    __builtin_prefetch(&node_of(block), 1);
    table_.prefetch(hash);
  }

  /// Number of published blocks that were published after one with this id. (Some may continue earlier contents of the
  /// id: they count, because equal contents may return to it.) Exact unless other threads publish or erase.
  [[nodiscard]] std::uint32_t num_children(block_id block) const noexcept {
    return node_of(block).children.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool has_children(block_id block) const noexcept { return num_children(block) != 0; }

  /// Hides a published block from all look-ups that begin afterwards; everything else about it stays until `erase`.
  /// False when it was hidden before.
  bool withdraw(block_id block) noexcept {
    auto& here = node_of(block);
    const bool first = (here.identity.fetch_or(withdrawn_bit, std::memory_order_acq_rel) & withdrawn_bit) == 0;
    if (first) {
      table_.erase(here.hash, block);
    }
    return first;
  }
  [[nodiscard]] bool withdrawn(block_id block) const noexcept {
    return (node_of(block).identity.load(std::memory_order_relaxed) & withdrawn_bit) != 0;
  }
  /// The same, ordered with withdrawals: either this sees one, or its thread sees what the caller did before.
  [[nodiscard]] bool was_withdrawn(block_id block) noexcept {
    return (node_of(block).identity.fetch_or(0, std::memory_order_acq_rel) & withdrawn_bit) != 0;
  }

  /// Whether a published block, on which the caller has a lease, is the first of a chain with this salt.
  [[nodiscard]] bool begins_chain(block_id block, salt tag) const noexcept {
    const auto& here = node_of(block);
    return here.parent == no_block && here.before == static_cast<std::uint64_t>(tag);
  }

  /// Erases a detached published block. Blocks that continue it stay but cannot be found until equal contents return.
  void erase(block_id block) noexcept {
    auto& here = node_of(block);
    if (!withdrawn(block)) {
      table_.erase(here.hash, block);
    }
    keys_.clear(block);
    here.identity.store(0, std::memory_order_relaxed);
  }

  /// Removes a published block from its parent's number of children, or adds it again. A detached block is about to be
  /// erased.
  void detach(block_id block) noexcept {
    table_.prefetch(node_of(block).hash);
    if (const auto before = parent(block); before != no_block) {
      node_of(before).children.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  void attach(block_id block) noexcept {
    if (const auto before = parent(block); before != no_block) {
      node_of(before).children.fetch_add(1, std::memory_order_relaxed);
    }
  }

  /// Compaction: `to`, which is free, replaces `from`. After all moves, `rename_parents` applies `new_id(old id)` to
  /// the links between blocks.
  void rename(block_id from, block_id to, bool published) noexcept {
    copy_run(tokens_.block(from), tokens_.block(to));
    keys_.rename(from, to);
    auto& source = node_of(from);
    auto& target = node_of(to);
    target.hash = source.hash;
    target.before = source.before;
    target.parent = source.parent;
    target.identity.store(source.identity.exchange(0, std::memory_order_relaxed), std::memory_order_relaxed);
    target.children.fetch_add(source.children.exchange(0, std::memory_order_relaxed), std::memory_order_relaxed);
    if (published && !withdrawn(to)) {
      table_.erase(target.hash, from);
      table_.insert(target.hash, to);
    }
  }
  template <class NewId>
  void rename_parents(NewId&& new_id) noexcept {
    for (std::size_t i = 0; i < num_blocks_; ++i) {
      if (nodes_[i].parent != no_block) {
        nodes_[i].parent = new_id(nodes_[i].parent);
      }
    }
  }

  /// The block that this one was published after, even if that one has been erased or reused.
  [[nodiscard]] block_id parent(block_id block) const noexcept { return node_of(block).parent; }

  /// The same, or `no_block` if that one is no longer in the index.
  [[nodiscard]] block_id parent_in_index(block_id block) const noexcept {
    const auto& here = node_of(block);
    const bool there =
        here.parent != no_block && node_of(here.parent).identity.load(std::memory_order_relaxed) == here.before;
    return there ? here.parent : no_block;
  }

  /// Whether a block was published directly after these contents: in this block, or in a twin of it.
  [[nodiscard]] bool continues(block_id block, const chain_link& before) const noexcept {
    const auto& here = node_of(block);
    return here.before == before.identity && (here.parent == no_block) == (before.block == no_block);
  }

  /// Whether the table maps a published block's hash to it.
  [[nodiscard]] bool reaches(block_id block) const noexcept {
    return table_.find(node_of(block).hash, [&](block_id found) { return found == block; }) == block;
  }

  /// Whether the contents of a published block still give the hash that they were published with. Also true where that
  /// can no longer be told.
  [[nodiscard]] bool contents_agree(block_id block) const noexcept {
    const auto& here = node_of(block);
    if (here.parent == no_block) {
      return here.hash == hash(root(static_cast<salt>(here.before)).hash, contents(block));
    }
    const auto parent = parent_in_index(block);
    return parent == no_block || here.hash == hash(node_of(parent).hash, contents(block));
  }

  [[nodiscard]] std::span<token> tokens(block_id block) noexcept { return tokens_.block(block); }
  [[nodiscard]] std::span<const token> tokens(block_id block) const noexcept { return tokens_.block(block); }
  /// Tokens, all of them, and keys.
  [[nodiscard]] block_contents contents(block_id block) const noexcept { return {tokens(block), keys_.keys(block)}; }
  /// Slot of the K/V of a token in `tokens(block)`.
  [[nodiscard]] slot slot_of(const token* inside) const noexcept { return tokens_.slot_of(inside); }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return tokens_.metadata_bytes() + keys_.metadata_bytes() + table_.metadata_bytes() + num_blocks_ * sizeof(node);
  }

 private:
  template <class T>
  using atomic = typename Locking::template atomic<T>;

  struct alignas(32) node {
    std::uint64_t hash = 0;
    std::uint64_t before = 0;           // identity of the preceding contents
    atomic<std::uint64_t> identity{0};  // 0 while not published
    block_id parent = no_block;         // the block it was published after; that one may have been erased
    atomic<std::uint32_t> children{0};  // published blocks whose parent had this id
  };

  // Beside the identity of a block that is withdrawn. Identities are counted, so they never come that far.
  static constexpr auto withdrawn_bit = std::uint64_t{1} << 63;

  [[nodiscard]] static std::uint64_t identity_of(const node& at) noexcept {
    return at.identity.load(std::memory_order_relaxed) & ~withdrawn_bit;
  }
  [[nodiscard]] node& node_of(block_id block) noexcept { return nodes_[to_index(block)]; }
  [[nodiscard]] const node& node_of(block_id block) const noexcept { return nodes_[to_index(block)]; }

  [[nodiscard]] static token upper(std::uint64_t word) noexcept { return static_cast<token>(word >> 32); }
  [[nodiscard]] static token lower(std::uint64_t word) noexcept { return static_cast<token>(word); }

  void enter(block_id block, const chain_link& before, std::uint64_t hash, std::uint64_t identity) noexcept {
    auto& here = node_of(block);
    here.hash = hash;
    here.before = before.identity;
    here.parent = before.block;
    here.identity.store(identity, std::memory_order_relaxed);
    attach(block);
    table_.insert(hash, block);
  }

  [[nodiscard]] bool matches(block_id block, const chain_link& before, std::uint64_t hash,
                             const block_contents& wanted) const noexcept {
    const auto& here = node_of(block);
    return here.hash == hash && here.before == before.identity &&
           (here.parent == no_block) == (before.block == no_block) && equal(tokens_.block(block), wanted.tokens) &&
           std::ranges::equal(keys_.keys(block), wanted.keys);
  }

  /// If the block matches, the lease on it stays.
  template <class Leases>
  [[nodiscard]] bool is_match(block_id block, const chain_link& before, std::uint64_t hash,
                              const block_contents& wanted, Leases& leases) const noexcept {
    if (!leases.take(block)) {
      return false;
    }
    if (matches(block, before, hash, wanted)) {
      return true;
    }
    leases.end(block);
    return false;
  }

  [[nodiscard]] static bool equal(std::span<const token> a, std::span<const token> b) noexcept {
    return std::memcmp(a.data(), b.data(), b.size_bytes()) == 0;
  }

  token_store tokens_;
  key_store<Locking::template atomic> keys_;
  bucket_table<Locking::template atomic> table_;
  std::size_t num_blocks_;
  std::unique_ptr<node[]> nodes_;
  std::uint64_t seed_;
  atomic<std::uint64_t> next_identity_{1};
};

}  // namespace pagedkv
