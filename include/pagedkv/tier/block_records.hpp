#pragma once

#include <pagedkv/backend/concept.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/policy/hash/concept.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>
#include <pagedkv/prefix/node_tree.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_store.hpp>
#include <pagedkv/tier/record_table.hpp>
#include <pagedkv/tier/slower_tier.hpp>
#include <pagedkv/tier/tier_config.hpp>

#include <algorithm>
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
class block_directory : public record_table<node_tree<single_thread, Hash>, true> {
  using tree_type = node_tree<single_thread, Hash>;
  using table = record_table<tree_type, true>;

 public:
  using link_type = typename tree_type::link_type;

  /// Throws `std::bad_alloc`.
  block_directory(std::int32_t num_nodes, std::int32_t num_blocks, std::int32_t block_size, std::uint64_t seed,
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
      table::prefetch(table::record_of(node));
      __builtin_prefetch(&oldest_[to_index(node)], 1);
    }
  }
  /// Removes a node that nothing needs, and then its ancestors of which that is true.
  [[gnu::always_inline]] void prune(node_id node) noexcept {
    if (tree_.num_holders(node) == 0 && tree_.index().is_published(node)) {
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
  /// The oldest of the device blocks with a node's contents.
  [[nodiscard]] block_id oldest(node_id node) const noexcept { return oldest_[to_index(node)]; }
  /// The node whose contents a device block has, if it has been attached.
  [[nodiscard]] node_id node_of_block(block_id block) const noexcept { return of(block).node; }
  /// Tells which of two device blocks has had its contents for longer: that of the smaller number.
  [[nodiscard]] std::uint64_t number_of(block_id block) const noexcept { return of(block).number; }
  /// A device block got contents.
  void note_stored(block_id block) noexcept { of(block).number = ++last_number_; }
  /// Counts a sequence that shares a device block; returns how many have since it got its contents.
  std::uint32_t count_hit(block_id block) noexcept { return ++of(block).num_hits; }
  [[nodiscard]] std::uint32_t num_hits(block_id block) const noexcept { return of(block).num_hits; }

  void attach(node_id node, block_id block) noexcept {
    auto& first = oldest_[to_index(node)];
    auto& there = of(block);
    there.node = node;
    if (first == no_block) {
      first = there.older = block;
    } else {
      auto& newest = of(first).older;
      of(newest).newer = block;
      there.older = std::exchange(newest, block);
    }
    tree_.hold(node);
  }
  /// A device block lost its contents. Returns its node, to be pruned.
  node_id detach(block_id block) noexcept {
    // Each member by itself: a load of several would wait for the store of one by `attach` just before.
    auto& gone = of(block);
    const auto node = gone.node;
    const auto older = gone.older;
    const auto newer = gone.newer;
    gone = {};
    if (node != no_node) {
      auto& first = oldest_[to_index(node)];
      if (first == block) {
        first = newer;
      } else {
        of(older).newer = newer;
      }
      if (first != no_block) {
        of(newer == no_block ? first : newer).older = older;
      }
      tree_.let_go(node);
    }
    return node;
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
    const auto moved = std::exchange(of(from), {});
    of(to) = moved;
    if (moved.node != no_node) {
      auto& first = oldest_[to_index(moved.node)];
      (first == from ? first : of(moved.older).newer) = to;
      of(moved.newer == no_block ? first : moved.newer).older = to;
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

  [[nodiscard]] device_block& of(block_id block) noexcept { return blocks_[to_index(block)]; }
  [[nodiscard]] const device_block& of(block_id block) const noexcept { return blocks_[to_index(block)]; }

  tree_type tree_;
  std::size_t block_size_;
  std::uint64_t last_number_ = 0;
  std::vector<block_id> oldest_;  // block of each node
  std::vector<device_block> blocks_;
};

/// The sizes of a cache with tiers that its store has to know.
struct tier_sizes {
  std::int32_t num_blocks = 0;  // of the device, capacity included
  std::int32_t block_size = 0;
  std::uint64_t seed = 0;
};

/// The records behind a cache with one group, whose changes it hears as events.
///
/// A block that only the device has is in its index alone. It gets a node when it is to be written, or where a record
/// continues it.
template <locking Locking, swaps_blocks Backend, block_hash Hash, allocator Allocator, class Queues>
class block_records : public record_store<Backend, block_directory<Hash>, Allocator, Queues> {
  using base = record_store<Backend, block_directory<Hash>, Allocator, Queues>;
  using base::config_;
  using base::index_;
  using base::transfers_;

 public:
  using directory_type = block_directory<Hash>;
  static constexpr auto heard = prefix_event_kinds | event_kinds{event_kind::hit};
  using device_index = prefix_index<Locking, Hash>;

  /// Throws `exception`, `std::bad_alloc`.
  block_records(const tier_sizes& sizes, const tier_config& config, Backend& backend, const block_storage_view& device,
                const record_format& format, Allocator memory, tier_list tiers)
      : base(config, sizes.num_blocks, backend, device, format, std::move(memory), tiers,
             num_nodes(sizes, tiers.shapes), sizes.num_blocks, sizes.block_size, sizes.seed, tiers.shapes.size()),
        block_size_(static_cast<std::size_t>(sizes.block_size)) {
    chain_.reserve(static_cast<std::size_t>(sizes.num_blocks));
    path_.reserve(static_cast<std::size_t>(sizes.num_blocks));
    blocks_.resize(static_cast<std::size_t>(sizes.num_blocks));
  }

  /// Before the first event.
  void attach(const device_index& index) noexcept { device_ = &index; }

  // Events of the device's cache.

  /// False where `stored` would change nothing, for a block that continues this one.
  [[nodiscard]] bool hears_stored(block_id origin) const noexcept {
    return Queues::has_slower || makes_nodes() || (index_.tree().num_alive() != 0 && may_continue(origin));
  }
  void hear(const cache_event& event) noexcept {
    switch (event.kind) {
      case event_kind::stored: stored(event); break;
      case event_kind::evicted: evicted(event.block); break;
      case event_kind::reset: reset(); break;
      case event_kind::hit: last_shared_ = event.block; break;
      default: break;
    }
  }

  // Look-ups.

  /// Before an operation that may share device blocks.
  void forget_shared() noexcept { last_shared_ = no_block; }

  /// Counts a hit on the device blocks that were shared last, for `through_hits`.
  void note_hits() noexcept {
    if (config_.write != write_policy::through_hits || last_shared_ == no_block) {
      return;
    }
    auto deepest = no_block;
    for (auto block = last_shared_; block != no_block; block = device_->parent_in_index(block)) {
      if (index_.count_hit(block) >= config_.hits_before_write && deepest == no_block) {
        deepest = block;
      }
    }
    for (auto node = deepest == no_block ? no_node : add_chain(deepest); node != no_node;
         node = index_.tree().parent(node)) {
      const auto block = index_.oldest(node);
      if (block != no_block && index_.num_hits(block) >= config_.hits_before_write &&
          !index_.has_record(index_.record_of(node))) {
        path_.emplace_back(index_.record_of(node), block);
      }
    }
    transfers_.want_path_written(path_, path_.size());
  }

  /// The records that continue the device blocks shared last, from the prompt's block number `first` on, as far as
  /// their K/V is in a tier or on its way. The caller lets go of each. Valid until the next call.
  [[nodiscard]] std::span<const record_id> match(const token_run& prompt, salt salt, std::size_t first,
                                                 std::size_t end) noexcept {
    chain_.clear();
    auto before = index_.tree().root(salt);
    if (first != 0) {
      const auto last = last_shared_ == no_block ? no_node
                        : config_.ask_ahead != 0 ? add_chain(last_shared_)
                                                 : find_chain(last_shared_);
      if (last == no_node) {
        return chain_;
      }
      before = index_.tree().link(last);
    }
    auto num_asked = std::int32_t{0};
    auto hash = before.hash;
    for (auto i = first; i < end && chain_.size() < chain_.capacity(); ++i) {
      const auto contents = prompt.block(i, block_size_);
      hash = i < prompt.hashes.size() ? prompt.hashes[i] : directory_type::hash(hash, contents);
      auto node = index_.find(before, hash, contents);
      if (node == no_node || !index_.is_reachable(index_.record_of(node))) {
        node = num_asked++ < config_.ask_ahead ? index_.find_or_add(before, hash, contents, salt) : no_node;
        if (node == no_node) {
          break;
        }
      }
      index_.hold(index_.record_of(node));
      chain_.push_back(index_.record_of(node));
      before = index_.tree().link(node);
    }
    return chain_;
  }

  /// How many blocks of a prompt there are from its start on if the device has the first `reach[0]`: with host memory,
  /// and with all tiers, in `reach[1]` and `reach[2]`; at most `end`.
  void measure(const token_run& prompt, salt salt, std::size_t end, std::array<std::size_t, 3>& reach) const noexcept {
    reach[1] = reach[2] = reach[0];
    auto before = index_.tree().root(salt);
    for (std::size_t i = 0; i < end; ++i) {
      const auto contents = prompt.block(i, block_size_);
      const auto hash = i < prompt.hashes.size() ? prompt.hashes[i] : directory_type::hash(before.hash, contents);
      const auto node = index_.find(before, hash, contents);
      if (node == no_node || (i >= reach[0] && !index_.is_reachable(index_.record_of(node)))) {
        return;
      }
      if (i >= reach[0]) {
        reach[1] += reach[1] == i && index_.in_host_memory(index_.record_of(node));
        reach[2] = i + 1;
      }
      before = index_.tree().link(node);
    }
  }

  /// Before a sequence drops blocks ahead of this one: it is found by its node when they have gone.
  void keep_chain(block_id last) noexcept {
    if (device_->is_published(last)) {
      static_cast<void>(add_chain(last));
    }
  }

  // Invalidations.

  /// Until the end of an invalidation, evictions are of contents that must not be served again, nor those behind them.
  /// Linear in the records, if there were any.
  void begin_invalidation() noexcept { invalidating_ = true; }
  void end_invalidation(bool any = true) noexcept {
    invalidating_ = false;
    if (any) {
      index_.end_invalidation();
    }
  }
  void invalidate_prefix(const token_run& run, salt salt) noexcept {
    index_.forget_orphans(salt);
    auto before = index_.tree().root(salt);
    for (std::size_t i = 0; i < run.tokens.size() / block_size_; ++i) {
      const auto contents = run.block(i, block_size_);
      const auto hash = directory_type::hash(before.hash, contents);
      const auto node = index_.find(before, hash, contents);
      if (node == no_node) {
        break;
      }
      before = index_.tree().link(node);
      index_.hold(index_.record_of(node));
      index_.withdraw(node);
      index_.let_go(index_.record_of(node));
    }
    if constexpr (Queues::has_slower) {
      auto key = root_key(salt);
      for (std::size_t i = 0; i < run.tokens.size() / block_size_; ++i) {
        key = chained_key(key, run.block(i, block_size_));
        index_.erase_unknown(key);
      }
    }
  }
  void invalidate_salt(salt salt) noexcept {
    index_.forget_orphans(salt);
    index_.tree().for_each([&](node_id node) {
      if (index_.tree().index().begins_chain(node, salt)) {
        index_.withdraw(node);
      }
    });
  }

  void rename_blocks(std::span<const block_pair> moves) noexcept {
    for (const auto& [from, to] : moves) {
      index_.rename_block(block_id{from}, block_id{to});
    }
  }

 private:
  /// Whether every block gets a node as soon as it is stored.
  [[nodiscard]] bool makes_nodes() const noexcept {
    return config_.write == write_policy::through || index_.has_orphans();
  }

  /// Whether what continues a block, or begins a chain, may have a node.
  [[nodiscard]] bool may_continue(block_id origin) const noexcept {
    return origin == no_block || index_.node_of_block(origin) != no_node;
  }

  void stored(const cache_event& event) noexcept {
    if constexpr (Queues::has_slower) {
      index_.note_stored(event.block);
    }
    if (may_continue(event.origin) || makes_nodes()) {
      continue_known(event);
    }
  }

  void evicted(block_id block) noexcept {
    if (index_.node_of_block(block) != no_node || config_.write == write_policy::on_eviction || invalidating_) {
      leave_device(block);
    } else {
      static_cast<void>(index_.detach(block));
    }
  }

  /// Every block left the device's cache, and the K/V in the tiers is as useless.
  void reset() noexcept {
    index_.detach_all([&](node_id node) {
      const auto record = index_.record_of(node);
      if (!index_.on_device(record) && index_.in_host_memory(record)) {
        index_.rank(record);  // transfers may hold it longer
      }
      index_.prune(node);
    });
    index_.forget_all();
  }

  /// A block that may continue known contents was stored.
  [[gnu::noinline]] void continue_known(const cache_event& event) noexcept {
    const auto above = event.origin == no_block ? no_node
                       : makes_nodes()          ? add_chain(event.origin)
                                                : index_.node_of_block(event.origin);
    if (event.origin != no_block && (above == no_node || index_.tree().is_withdrawn(above))) {
      if (makes_nodes()) {
        index_.lose_unwritten();
      }
      return;
    }
    const auto before = above == no_node ? index_.tree().root(event.salt) : index_.tree().link(above);
    const auto contents = block_contents{event.tokens, event.keys};
    const auto node = makes_nodes() ? index_.find_or_add(before, event.hash, contents, event.salt)
                                    : index_.find(before, event.hash, contents);
    if (node == no_node) {
      if (makes_nodes()) {
        index_.lose_unwritten();
      }
      return;
    }
    attach(node, event.block);
    const auto record = index_.record_of(node);
    if (config_.write == write_policy::through && !index_.in_host_memory(record)) {
      want_ancestors_written(node, index_.number_of(event.block));
      transfers_.want_written(record, event.block);
    }
  }

  [[gnu::noinline]] void leave_device(block_id block) noexcept {
    const auto is_written = config_.write == write_policy::on_eviction && !invalidating_;
    if (index_.node_of_block(block) == no_node && (is_written ? add_chain(block) : find_chain(block)) == no_node) {
      static_cast<void>(index_.detach(block));
      if (is_written) {
        index_.lose_unwritten();
      }
      return;
    }
    const auto number = index_.number_of(block);
    const auto node = index_.detach(block);
    const auto record = index_.record_of(node);
    if (invalidating_) {
      index_.withdraw(node);
    }
    if (index_.on_device(record)) {
      return;
    }
    const auto is_wanted = !index_.is_withdrawn(record) && config_.write != write_policy::through_hits;
    if (is_wanted) {
      want_ancestors_written(node, number);
    }
    if (index_.in_host_memory(record)) {
      index_.rank(record);
    } else if (is_wanted) {
      transfers_.want_written(record, block);
    }
    index_.tidy(record);
  }

  void attach(node_id node, block_id block) noexcept {
    index_.attach(node, block);
    if (const auto record = index_.record_of(node); index_.in_host_memory(record)) {
      index_.unrank(record);
      index_.tidy(record);
    }
  }

  /// The node of a published device block, if its contents are known. `no_node` for a block without one also if its
  /// ancestors are not all on the device, or if some were invalidated.
  [[nodiscard]] node_id find_chain(block_id last) noexcept {
    return node_of_chain(last, [&](const auto& before, std::uint64_t hash, const block_contents& contents, salt) {
      return index_.find(before, hash, contents);
    });
  }
  /// The node of a published device block, made if it is new; `no_node` where `find_chain` would say it, and for a
  /// block that was invalidated.
  [[nodiscard]] node_id add_chain(block_id last) noexcept {
    if (device_->withdrawn(last)) {
      return no_node;
    }
    return node_of_chain(last, [&](const auto& before, std::uint64_t hash, const block_contents& contents, salt salt) {
      return index_.find_or_add(before, hash, contents, salt);
    });
  }
  /// Attaches the blocks of a chain to their nodes, as `node_of(before, hash, contents, salt)` gives them.
  template <class NodeOf>
  [[nodiscard]] node_id node_of_chain(block_id last, NodeOf&& node_of) noexcept {
    if (const auto known = index_.node_of_block(last); known != no_node) {
      return known;
    }
    auto num_blocks = std::size_t{0};
    auto block = last;
    for (; block != no_block && index_.node_of_block(block) == no_node; block = device_->parent_in_index(block)) {
      blocks_[num_blocks++] = block;
    }
    const auto first = blocks_[num_blocks - 1];
    const bool continues_useful = block == no_block ? device_->parent(first) == no_block
                                                    : !index_.tree().is_withdrawn(index_.node_of_block(block));
    if (!continues_useful) {
      return no_node;
    }
    const auto salt = block == no_block ? device_->salt_of_first(first) : index_.salt_of(index_.node_of_block(block));
    auto before = block == no_block ? index_.tree().root(salt) : index_.tree().link(index_.node_of_block(block));
    constexpr auto num_ahead = std::size_t{16};
    const auto prefetch = [&](std::size_t ahead, std::size_t number) {
      const auto there = blocks_[number];
      device_->prefetch_contents(there);
      index_.prefetch_addition(ahead, device_->link(there).hash);
    };
    for (auto i = std::size_t{1}; i < std::min(num_blocks, num_ahead); ++i) {
      prefetch(i, num_blocks - 1 - i);
    }
    for (auto left = num_blocks; left > 0; --left) {
      if (left > num_ahead) {  // the cache lines that a later one touches
        prefetch(num_ahead, left - 1 - num_ahead);
      }
      const auto there = blocks_[left - 1];
      const auto node = node_of(before, device_->link(there).hash, device_->contents(there), salt);
      if (node == no_node) {
        return no_node;
      }
      attach(node, there);
      before = index_.tree().link(node);
    }
    return before.node;
  }

  /// A record is of use only with those of its ancestors. Of a chain whose head the device keeps, because others share
  /// it, and whose tail goes, the head is written, too: as much as slower tiers could get at once, and the rest with
  /// the next tail. Blocks that got these contents after block number `number` got its own are left out: their K/V may
  /// not be there yet. Constant where the parent has a record.
  void want_ancestors_written([[maybe_unused]] node_id node, [[maybe_unused]] std::uint64_t number) noexcept {
    if constexpr (Queues::has_slower) {
      const auto most = transfers_.num_more_writes();
      for (auto above = most == 0 ? no_node : index_.tree().parent(node); above != no_node;
           above = index_.tree().parent(above)) {
        const auto record = index_.record_of(above);
        if (index_.at(record).pending || index_.has_record(record)) {
          break;
        }
        const auto block = index_.oldest(above);
        if (block != no_block && index_.number_of(block) < number) {
          path_.emplace_back(record, block);
        }
      }
      transfers_.want_path_written(path_, most);
    }
  }

  /// Nodes for every device block, and for every record of a tier.
  [[nodiscard]] static std::int32_t num_nodes(const tier_sizes& sizes, std::span<const tier_shape> shapes) {
    auto sum = std::int64_t{sizes.num_blocks};
    for (const auto& shape : shapes) {
      sum += shape.num_places;
    }
    if (sum > std::int64_t{1} << 30) {
      detail::fail({error_code::size_overflow, "records of all tiers", sum, std::int64_t{1} << 30});
    }
    return static_cast<std::int32_t>(sum);
  }

  std::size_t block_size_;
  block_id last_shared_ = no_block;
  bool invalidating_ = false;
  const device_index* device_ = nullptr;
  std::vector<record_id> chain_;
  std::vector<std::pair<record_id, block_id>> path_;  // from a node's parent up
  std::vector<block_id> blocks_;                      // of the device, room for a chain from its end up
};

}  // namespace pagedkv
