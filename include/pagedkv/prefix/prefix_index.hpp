#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/runs.hpp>
#include <pagedkv/policy/hash/concept.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/prefix/bucket_table.hpp>
#include <pagedkv/prefix/token_store.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

namespace pagedkv {

/// Finds the published node that continues a chain with given tokens and keys.
///
/// Exactness: published contents have an *identity*, a number never used twice. Nodes with equal tokens and keys after
/// equal identities share one identity; all other contents get a new one. A node matches only if its tokens, its keys
/// and the identity before it are equal to the requested ones; by induction, the whole chain is equal. Hashes only
/// select candidates. (Under a concurrent family, two threads that publish equal contents at once may get two
/// identities: a lost hit, never a wrong one.)
///
/// Thread safety: only the sequence that allocated a node writes its tokens, keys and links, before the node is
/// published. Others read them only under a reference or a lease: `leases.take(id)` takes one, or refuses, and
/// `leases.end(id)` ends it.
///
/// `Node` says what a node is. `block_id`: a block, which has one node at a time; the index counts those that continue
/// it, and knows the newest. `node_id`: nodes have numbers of their own, and a `node_tree` keeps them, the first child
/// of each in the index.
template <locking Locking, block_hash Hash, class Node = block_id>
class prefix_index {
 public:
  using node_type = Node;
  using link_type = node_link<Node>;
  static constexpr auto none = Node{-1};
  static constexpr bool nodes_are_blocks = std::same_as<Node, block_id>;
  /// Whether a link from a node to its newest child always names a published node that continues its contents.
  static constexpr bool links_are_exact = !Locking::family::concurrent;

  prefix_index(std::int32_t num_nodes, std::int32_t block_size, std::uint64_t seed)
      : tokens_(num_nodes, block_size),
        keys_(num_nodes),
        table_(num_nodes),
        num_nodes_(static_cast<std::size_t>(num_nodes)),
        records_(std::make_unique<record[]>(num_nodes_)),
        newest_(num_nodes),
        seed_(seed) {}

  [[nodiscard]] link_type root(salt salt) const noexcept {
    const auto words =
        std::to_array({upper(static_cast<std::uint64_t>(salt)), lower(static_cast<std::uint64_t>(salt))});
    return {Hash::hash(seed_, words), static_cast<std::uint64_t>(salt), none};
  }

  [[nodiscard]] link_type link(Node node) const noexcept {
    const auto& here = at(node);
    return {here.hash, identity_of(here), node};
  }

  /// The hash of one node, chained. A key is mixed in ahead of the tokens, as the position and the two words of the
  /// value, each in two halves, the upper one first.
  [[nodiscard]] static std::uint64_t hash(std::uint64_t previous, const block_contents& contents) noexcept {
    return Hash::hash(contents.keys.empty() ? previous : hash_keys(previous, contents.keys), contents.tokens);
  }

  /// The node with these contents right after `before`, under a lease; or `none`. `hash` is theirs, chained.
  template <class Leases>
  [[nodiscard]] Node find(const link_type& before, std::uint64_t hash, const block_contents& contents,
                              Leases&& leases) const noexcept {
    return table_.find(hash, [&](Node node) { return is_match(node, before, hash, contents, leases); });
  }

  /// The newest or first child of a published node, whose link `before` is, if it has these contents, under a lease.
  /// Where it returns `none`, `find` may know another.
  template <class Contents, class Leases>
  [[nodiscard]] [[gnu::always_inline]] Node follow(Node from, const link_type& before, const Contents& contents,
                                                   Leases&& leases) const noexcept {
    const auto child = from != none ? likely_child(from) : none;
    if (child == none || !leases.take(child)) {
      return none;
    }
    const auto& there = at(child);
    const auto continues =
        nodes_are_blocks ? links_are_exact || (there.before == before.identity && there.parent != none)
                         : !withdrawn(child);
    if (continues && has(child, contents)) {
      return child;
    }
    leases.end(child);
    return none;
  }

  /// `find`, out of line.
  template <class Leases>
  [[nodiscard]] [[gnu::noinline]] Node find_another(const link_type& before, std::uint64_t hash,
                                                    const block_contents& contents, Leases& leases) const noexcept {
    return find(before, hash, contents, leases);
  }

  /// First and second part of a look-up in three parts, which hide memory latency. The third part is `find_near`: like
  /// `find`, but it tries the second part's result first, which is not `none`. Where the second part finds none, the
  /// look-up finds none either, unless another thread publishes one meanwhile.
  [[gnu::always_inline]] void prefetch_bucket(std::uint64_t hash) const noexcept { table_.prefetch(hash); }
  [[nodiscard]] Node prefetch_node(std::uint64_t hash) const noexcept {
    return table_.find(hash, [&](Node node) {
      __builtin_prefetch(&at(node));
      __builtin_prefetch(tokens_.of(node).data());
      return true;
    });
  }
  template <class Leases>
  [[nodiscard]] [[gnu::always_inline]] Node find_near(Node candidate, const link_type& before, std::uint64_t hash,
                                                      const block_contents& contents, Leases&& leases) const noexcept {
    return is_match(candidate, before, hash, contents, leases) ? candidate
                                                               : find_another(before, hash, contents, leases);
  }

  /// Gives an unpublished node the keys that it is about to be published with. False when memory is exhausted. Nodes
  /// that are not published after all are to be cleared of them.
  [[nodiscard]] bool assign_keys(Node node, std::span<const prefix_key> keys) noexcept {
    return keys_.assign(node, keys);
  }
  /// Keeps the hash of an unpublished node, for `link`.
  void note_hash(Node node, std::uint64_t hash) noexcept { at(node).hash = hash; }
  void clear_keys(Node node) noexcept { keys_.clear(node); }

  /// Enters a full node with its `contents`. The caller has a reference to it and marks it published afterwards.
  /// Returns its twin, a published node of equal contents, under a lease, which the caller ends after it has asked
  /// `was_withdrawn`; `none` means that the contents are new, so that nothing can have been published after them.
  template <class Leases>
  Node publish(Node node, const link_type& before, std::uint64_t hash, Leases&& leases) noexcept {
    const auto twin = find_twin(before, hash, contents(node), leases);
    if (twin == none) {
      publish_first(node, before, hash);
      return none;
    }
    enter(node, before, hash, identity_of(at(twin)));
    return twin;
  }

  /// Publishes new contents: `before` is new and no node has been published after it. Skips the search for a twin.
  void publish_first(Node node, const link_type& before, std::uint64_t hash) noexcept {
    enter(node, before, hash, next_identity_.fetch_add(1, std::memory_order_relaxed));
  }

  /// Whether another published node, for which `stays(id)` is true, has the same contents as this one, on which the
  /// caller has a lease. Other threads may erase the twin at any time.
  template <class Stays>
  [[nodiscard]] bool has_twin(Node node, Stays&& stays) const noexcept {
    const auto& here = at(node);
    const auto identity = identity_of(here);
    const auto is_twin = [&](Node other) {
      return other != node && identity_of(at(other)) == identity && stays(other);
    };
    return table_.find(here.hash, is_twin) != none;
  }

  /// Prefetches for `publish`.
  [[gnu::always_inline]] void prefetch_publication(Node node, std::uint64_t hash) const noexcept {
    __builtin_prefetch(&at(node), 1);
    table_.prefetch(hash);
  }

  /// Prefetches a node and its tokens.
  [[gnu::always_inline]] void prefetch_contents(Node node) const noexcept {
    __builtin_prefetch(&at(node), 1);
    __builtin_prefetch(tokens_.of(node).data());
  }

  /// Number of published nodes that were published after one with this id. (Some may continue earlier contents of the
  /// id: they count, because equal contents may return to it.) Exact unless other threads publish or erase.
  [[nodiscard]] std::uint32_t num_children(Node node) const noexcept
    requires nodes_are_blocks
  {
    return at(node).children.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool has_children(Node node) const noexcept
    requires nodes_are_blocks
  {
    return num_children(node) != 0;
  }

  /// A link for the tree that keeps the nodes; `none` for a new one.
  [[nodiscard]] Node first_child(Node node) const noexcept
    requires(!nodes_are_blocks)
  {
    return at(node).children.load(std::memory_order_relaxed);
  }
  void set_first_child(Node node, Node child) noexcept
    requires(!nodes_are_blocks)
  {
    at(node).children.store(child, std::memory_order_relaxed);
  }
  /// Whether a node is in the index, withdrawn or not.
  [[nodiscard]] bool is_published(Node node) const noexcept {
    return at(node).identity.load(std::memory_order_relaxed) != 0;
  }

  /// Hides a published node from all look-ups that begin afterwards; everything else about it stays until `erase`.
  /// False when it was hidden before.
  bool withdraw(Node node) noexcept {
    auto& here = at(node);
    const bool first = (here.identity.fetch_or(withdrawn_bit, std::memory_order_acq_rel) & withdrawn_bit) == 0;
    if (first) {
      hide(node);
    }
    return first;
  }
  [[nodiscard]] bool withdrawn(Node node) const noexcept {
    return (at(node).identity.load(std::memory_order_relaxed) & withdrawn_bit) != 0;
  }
  /// Whether it was withdrawn, ordered with withdrawals: either this sees one, or its thread sees what the caller did
  /// before.
  [[nodiscard]] bool was_withdrawn(Node node) noexcept {
    return (at(node).identity.fetch_or(0, std::memory_order_acq_rel) & withdrawn_bit) != 0;
  }

  /// Whether a published node, on which the caller has a lease, is the first of a chain with this salt.
  [[nodiscard]] bool begins_chain(Node node, salt salt) const noexcept {
    const auto& here = at(node);
    return here.parent == none && here.before == static_cast<std::uint64_t>(salt);
  }

  /// The salt of a published node that is the first of a chain.
  [[nodiscard]] salt salt_of_first(Node node) const noexcept { return static_cast<salt>(at(node).before); }

  /// Erases a detached published node. Nodes that continue it stay but cannot be found until equal contents return.
  void erase(Node node) noexcept {
    if (!withdrawn(node)) {
      hide(node);
    }
    if constexpr (nodes_are_blocks) {
      newest_.clear(node);
    }
    keys_.clear(node);
    at(node).identity.store(0, std::memory_order_relaxed);
  }

  /// Prefetches for `erase`.
  [[gnu::always_inline]] void prefetch_erasure(Node node) const noexcept { table_.prefetch(at(node).hash); }
  /// Prefetches for what `erase` reads before it knows of a bucket.
  [[gnu::always_inline]] void prefetch_links(Node node) const noexcept
    requires(!nodes_are_blocks)
  {
    __builtin_prefetch(&at(node), 1);
  }
  /// Prefetches for the evictions of the next two victims, in two steps: the second one's record says where the rest of
  /// what its eviction touches is, which is fetched when it has become the first.
  [[gnu::always_inline]] void prefetch_victims(Node next, Node then) const noexcept
    requires nodes_are_blocks
  {
    prefetch_erasure(next);
    newest_.prefetch(next);
    if (const auto before = parent(next); before != none) {
      __builtin_prefetch(&at(before), 1);
      newest_.prefetch(before);
    }
    __builtin_prefetch(tokens_.of(next).data(), 1);
    __builtin_prefetch(&at(then), 1);
  }
  /// Removes a published block from its parent's number of children, or adds it again. A detached one is about to be
  /// erased.
  void detach(Node node) noexcept
    requires nodes_are_blocks
  {
    prefetch_erasure(node);
    if (const auto before = parent(node); before != none) {
      at(before).children.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  void attach(Node node) noexcept
    requires nodes_are_blocks
  {
    if (const auto before = parent(node); before != none) {
      at(before).children.fetch_add(1, std::memory_order_relaxed);
    }
  }

  /// Compaction: `to`, which is free, replaces `from`. After all moves, `rename_links` applies `new_id(old id)` to the
  /// links between nodes.
  void rename(Node from, Node to, bool published) noexcept
    requires nodes_are_blocks
  {
    copy_run(tokens_.of(from), tokens_.of(to));
    keys_.rename(from, to);
    newest_.rename(from, to);
    auto& source = at(from);
    auto& target = at(to);
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
  void rename_links(NewId&& new_id) noexcept {
    for (std::size_t i = 0; i < num_nodes_; ++i) {
      if (records_[i].parent != none) {
        records_[i].parent = new_id(records_[i].parent);
      }
    }
    newest_.rename_children(new_id);
  }

  /// The node that this one was published after, even if that one has been erased or reused.
  [[nodiscard]] Node parent(Node node) const noexcept { return at(node).parent; }

  /// The parent, or `none` if that one is no longer in the index.
  [[nodiscard]] Node parent_in_index(Node node) const noexcept {
    const auto& here = at(node);
    const bool there =
        here.parent != none && at(here.parent).identity.load(std::memory_order_relaxed) == here.before;
    return there ? here.parent : none;
  }

  /// Whether a node was published directly after these contents: in this node, or in a twin of it.
  [[nodiscard]] bool continues(Node node, const link_type& before) const noexcept {
    const auto& here = at(node);
    return here.before == before.identity && (here.parent == none) == (before.node == none);
  }

  /// Whether the table maps a published node's hash to it.
  [[nodiscard]] bool reaches(Node node) const noexcept {
    return table_.find(at(node).hash, [&](Node found) { return found == node; }) == node;
  }

  /// Whether the link from a node to a child names none, or one that it should. Where links are exact.
  [[nodiscard]] bool link_agrees(Node node) const noexcept {
    const auto child = likely_child(node);
    const auto is_found = child != none && (nodes_are_blocks || !withdrawn(child));
    return child == none || (parent(child) == node && is_found == reaches(child) && continues(child, link(node)));
  }

  /// Whether the contents of a published node still give the hash that they were published with. Also true where that
  /// can no longer be told.
  [[nodiscard]] bool contents_agree(Node node) const noexcept {
    const auto& here = at(node);
    if (here.parent == none) {
      return here.hash == hash(root(static_cast<salt>(here.before)).hash, contents(node));
    }
    const auto parent = parent_in_index(node);
    return parent == none || here.hash == hash(at(parent).hash, contents(node));
  }

  [[nodiscard]] std::span<token> tokens(Node node) noexcept { return tokens_.of(node); }
  [[nodiscard]] std::span<const token> tokens(Node node) const noexcept { return tokens_.of(node); }
  /// Tokens, all of them, and keys.
  [[nodiscard]] block_contents contents(Node node) const noexcept { return {tokens(node), keys_.keys(node)}; }
  /// Slot of the K/V of a token in `tokens(node)`, if nodes are blocks.
  [[nodiscard]] slot slot_of(const token* inside) const noexcept
    requires std::same_as<Node, block_id>
  {
    return tokens_.slot_of(inside);
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return tokens_.metadata_bytes() + keys_.metadata_bytes() + table_.metadata_bytes() + newest_.metadata_bytes() +
           num_nodes_ * sizeof(record);
  }

 private:
  template <class T>
  using atomic = typename Locking::template atomic<T>;
  using children_type = std::conditional_t<nodes_are_blocks, std::uint32_t, Node>;
  struct no_links {
    explicit no_links(std::int32_t) noexcept {}
    [[nodiscard]] static std::size_t metadata_bytes() noexcept { return 0; }
  };
  using links_type =
      std::conditional_t<nodes_are_blocks, newest_children<Locking::template atomic, Node>, no_links>;

  struct alignas(32) record {
    std::uint64_t hash = 0;
    std::uint64_t before = 0;           // identity of the preceding contents
    atomic<std::uint64_t> identity{0};  // 0 while not published
    Node parent = none;                 // the node it was published after; that one may have been erased
    atomic<children_type> children{static_cast<children_type>(nodes_are_blocks ? 0 : -1)};  // of a block: how many
  };

  // Beside the identity of a node that is withdrawn. Identities are counted, so they never come that far.
  static constexpr auto withdrawn_bit = std::uint64_t{1} << 63;

  [[nodiscard]] static std::uint64_t identity_of(const record& of) noexcept {
    return of.identity.load(std::memory_order_relaxed) & ~withdrawn_bit;
  }
  [[nodiscard]] record& at(Node node) noexcept { return records_[to_index(node)]; }
  [[nodiscard]] const record& at(Node node) const noexcept { return records_[to_index(node)]; }

  [[nodiscard]] Node likely_child(Node node) const noexcept {
    if constexpr (nodes_are_blocks) {
      return newest_.of(node);
    } else {
      return first_child(node);
    }
  }

  [[nodiscard]] static token upper(std::uint64_t word) noexcept { return static_cast<token>(word >> 32); }
  [[nodiscard]] static token lower(std::uint64_t word) noexcept { return static_cast<token>(word); }

  /// Out of line, so that the loops over blocks without keys stay small.
  [[nodiscard]] [[gnu::noinline]] static std::uint64_t hash_keys(std::uint64_t previous,
                                                                 std::span<const prefix_key> keys) noexcept {
    for (const auto& [position, value] : keys) {
      const auto words =
          std::to_array({upper(static_cast<std::uint64_t>(position)), lower(static_cast<std::uint64_t>(position)),
                         upper(value[0]), lower(value[0]), upper(value[1]), lower(value[1])});
      previous = Hash::hash(previous, words);
    }
    return previous;
  }

  void enter(Node node, const link_type& before, std::uint64_t hash, std::uint64_t identity) noexcept {
    auto& here = at(node);
    here.hash = hash;
    here.before = before.identity;
    here.parent = before.node;
    here.identity.store(identity, std::memory_order_relaxed);
    if constexpr (nodes_are_blocks) {
      attach(node);
      if (before.node != none && identity_of(at(before.node)) == before.identity) {  // or it has other contents now
        newest_.note(before.node, node);
      }
    }
    table_.insert(hash, node);
  }

  /// Takes a published node out of the reach of look-ups.
  void hide(Node node) noexcept {
    table_.erase(at(node).hash, node);
    if constexpr (nodes_are_blocks) {
      if (const auto before = parent(node); before != none) {
        newest_.forget(before, node);
      }
    }
  }

  [[nodiscard]] [[gnu::always_inline]] bool matches(Node node, const link_type& before, std::uint64_t hash,
                                                    const block_contents& wanted) const noexcept {
    const auto& here = at(node);
    return here.hash == hash && here.before == before.identity &&
           (here.parent == none) == (before.node == none) && has(node, wanted);
  }

  /// If the node matches, the lease on it stays.
  template <class Leases>
  [[nodiscard]] [[gnu::always_inline]] bool is_match(Node node, const link_type& before, std::uint64_t hash,
                              const block_contents& wanted, Leases& leases) const noexcept {
    if (!leases.take(node)) {
      return false;
    }
    if (matches(node, before, hash, wanted)) {
      return true;
    }
    leases.end(node);
    return false;
  }

  /// `find`, where there is seldom one. Out of line, so that loops that publish stay small.
  template <class Leases>
  [[nodiscard]] [[gnu::noinline]] Node find_twin(const link_type& before, std::uint64_t hash,
                                                 const block_contents& wanted, Leases& leases) const noexcept {
    return table_.find_if_any(hash, [&](Node node) { return is_match(node, before, hash, wanted, leases); });
  }

  [[nodiscard]] [[gnu::always_inline]] bool has(Node node, const block_contents& wanted) const noexcept {
    return detail::equal_tokens(wanted.tokens, tokens_.of(node)) && keys_.has(node, wanted.keys);
  }
  [[nodiscard]] bool has(Node node, const long_contents& wanted) const noexcept {
    return detail::equal_long_runs(wanted.tokens, tokens_.of(node)) && keys_.has(node, wanted.keys);
  }

  token_store<Node> tokens_;
  key_store<Locking::template atomic, Node> keys_;
  bucket_table<Locking::template atomic, Node> table_;
  std::size_t num_nodes_;
  std::unique_ptr<record[]> records_;
  [[no_unique_address]] links_type newest_;
  std::uint64_t seed_;
  atomic<std::uint64_t> next_identity_{1};
};

}  // namespace pagedkv
