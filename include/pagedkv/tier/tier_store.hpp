#pragma once

#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/policy/backend/concept.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/tier/host_tier.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_store.hpp>
#include <pagedkv/tier/record_table.hpp>
#include <pagedkv/tier/tier_config.hpp>
#include <pagedkv/tier/tier_directory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace pagedkv {

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
template <locking Locking, swaps_blocks Backend, block_hash Hash, class Host, tier... Slower>
class tier_store : public record_store<Backend, tier_directory<Hash>, Host, Slower...> {
  using base = record_store<Backend, tier_directory<Hash>, Host, Slower...>;
  using base::catalog_;
  using base::config_;
  using base::pipeline_;

 public:
  using directory_type = tier_directory<Hash>;
  using device_index = prefix_index<Locking, Hash>;
  using base::num_tiers;

  /// Throws `exception`, `std::bad_alloc`.
  tier_store(const tier_sizes& sizes, const tier_config& config, Backend& backend, const block_storage_view& device,
             const record_format& format, Host host_tier, std::tuple<Slower...> slower)
      : base(config, sizes.num_blocks, backend, device, format, std::move(host_tier), std::move(slower),
             [&](std::int64_t num_records) { return make_directory(sizes, num_records); }),
        block_size_(static_cast<std::size_t>(sizes.block_size)) {
    chain_.reserve(static_cast<std::size_t>(sizes.num_blocks));
    path_.reserve(static_cast<std::size_t>(sizes.num_blocks));
    blocks_.reserve(static_cast<std::size_t>(sizes.num_blocks));
  }

  /// Before the first event.
  void attach(const device_index& index) noexcept { device_ = &index; }

  // Events of the device's cache.

  /// False where `stored` would change nothing.
  [[nodiscard]] bool hears_stored() const noexcept {
    return num_tiers != 1 || catalog_.directory().tree().num_alive() != 0 || makes_nodes();
  }
  void stored(const cache_event& event) noexcept {
    auto& directory = catalog_.directory();
    if constexpr (num_tiers != 1) {
      directory.note_stored(event.block);
    }
    if (event.origin == no_block || directory.node_of_block(event.origin) != no_node || makes_nodes()) {
      continue_known(event);
    }
  }

  void evicted(block_id block) noexcept {
    if (catalog_.directory().node_of_block(block) != no_node || config_.write == write_policy::on_eviction ||
        invalidating_) {
      leave_device(block);
    } else {
      static_cast<void>(catalog_.directory().detach(block));
    }
  }

  void shared(block_id last) noexcept { last_shared_ = last; }

  /// Every block left the device's cache, and the K/V in the tiers is as useless.
  void reset() noexcept {
    auto& directory = catalog_.directory();
    directory.detach_all([&](node_id node) {
      const auto record = directory.record_of(node);
      if (!directory.on_device(record) && catalog_.in_host_memory(record)) {
        catalog_.rank(record);  // transfers may hold it longer
      }
      directory.prune(node);
    });
    catalog_.forget_all();
  }

  // Look-ups.

  /// Before an operation that may share device blocks.
  void forget_shared() noexcept { last_shared_ = no_block; }

  /// Counts a hit on the device blocks that were shared last, for `through_hits`.
  void note_hits() noexcept {
    if (config_.write != write_policy::through_hits || last_shared_ == no_block) {
      return;
    }
    auto& directory = catalog_.directory();
    auto deepest = no_block;
    for (auto block = last_shared_; block != no_block; block = device_->parent_in_index(block)) {
      if (directory.count_hit(block) >= config_.hits_before_write && deepest == no_block) {
        deepest = block;
      }
    }
    path_.clear();
    for (auto node = deepest == no_block ? no_node : add_chain(deepest); node != no_node;
         node = directory.tree().parent(node)) {
      const auto block = directory.oldest(node);
      if (block != no_block && directory.num_hits(block) >= config_.hits_before_write &&
          !directory.has_record(directory.record_of(node))) {
        path_.emplace_back(directory.record_of(node), block);
      }
    }
    base::want_path_written(path_, path_.size());
  }

  /// The records that continue the device blocks shared last, from the prompt's block number `first` on, as far as their
  /// K/V is in a tier or on its way. The caller lets go of each. Valid until the next call.
  [[nodiscard]] std::span<const record_id> match(const token_run& prompt, salt tag, std::size_t first,
                                                 std::size_t end) noexcept {
    const auto& directory = catalog_.directory();
    chain_.clear();
    auto before = directory.tree().root(tag);
    if (first != 0) {
      const auto last = last_shared_ == no_block ? no_node
                        : config_.ask_ahead != 0 ? add_chain(last_shared_)
                                                 : find_chain(last_shared_);
      if (last == no_node) {
        return chain_;
      }
      before = directory.tree().link(last);
    }
    auto num_asked = std::int32_t{0};
    auto hash = before.hash;
    for (auto i = first; i < end && chain_.size() < chain_.capacity(); ++i) {
      const auto contents = prompt.block(i, block_size_);
      hash = i < prompt.hashes.size() ? prompt.hashes[i] : directory_type::hash(hash, contents);
      auto node = directory.find(before, hash, contents);
      if (node == no_node || !catalog_.is_reachable(directory.record_of(node))) {
        node = num_asked++ < config_.ask_ahead ? catalog_.find_or_add(before, hash, contents, tag) : no_node;
        if (node == no_node) {
          break;
        }
      }
      catalog_.hold(directory.record_of(node));
      chain_.push_back(directory.record_of(node));
      before = directory.tree().link(node);
    }
    return chain_;
  }

  /// Before a sequence drops blocks ahead of this one: it is found by its node when they have gone.
  void keep_chain(block_id last) noexcept {
    if (device_->is_published(last) && !device_->withdrawn(last)) {
      static_cast<void>(add_chain(last));
    }
  }

  // Invalidations.

  /// Until the end of an invalidation, evictions are of contents that must not be served again, nor those behind them.
  /// Linear in the records, if there were any.
  void begin_invalidation() noexcept { invalidating_ = true; }
  void end_invalidation() noexcept {
    invalidating_ = false;
    catalog_.end_invalidation();
  }
  void invalidate_prefix(const token_run& run, salt tag) noexcept {
    const auto& directory = catalog_.directory();
    catalog_.forget_orphans(tag);
    auto before = directory.tree().root(tag);
    for (std::size_t i = 0; i < run.tokens.size() / block_size_; ++i) {
      const auto contents = run.block(i, block_size_);
      const auto hash = directory_type::hash(before.hash, contents);
      const auto node = directory.find(before, hash, contents);
      if (node == no_node) {
        break;
      }
      before = directory.tree().link(node);
      catalog_.hold(directory.record_of(node));
      catalog_.withdraw(node);
      catalog_.let_go(directory.record_of(node));
    }
    if constexpr (num_tiers != 1) {
      auto key = root_key(tag);
      for (std::size_t i = 0; i < run.tokens.size() / block_size_; ++i) {
        key = chained_key(key, run.block(i, block_size_));
        catalog_.erase_unknown(key);
      }
    }
  }
  void invalidate_salt(salt tag) noexcept {
    catalog_.forget_orphans(tag);
    const auto& tree = catalog_.directory().tree();
    tree.for_each([&](node_id node) {
      if (tree.index().begins_chain(node, tag)) {
        catalog_.withdraw(node);
      }
    });
  }

  void rename_blocks(std::span<const block_pair> moves) noexcept {
    for (const auto& [from, to] : moves) {
      catalog_.directory().rename_block(block_id{from}, block_id{to});
    }
  }

 private:
  /// Whether every block gets a node as soon as it is stored.
  [[nodiscard]] bool makes_nodes() const noexcept {
    return config_.write == write_policy::through || catalog_.has_orphans();
  }

  /// A block that may continue known contents was stored.
  [[gnu::noinline]] void continue_known(const cache_event& event) noexcept {
    auto& directory = catalog_.directory();
    const auto above = event.origin == no_block ? no_node
                       : makes_nodes()          ? add_chain(event.origin)
                                                : directory.node_of_block(event.origin);
    if (event.origin != no_block && (above == no_node || directory.tree().is_withdrawn(above))) {
      if (makes_nodes()) {
        catalog_.lose_unwritten();
      }
      return;
    }
    const auto before = above == no_node ? directory.tree().root(event.salt) : directory.tree().link(above);
    const auto contents = block_contents{event.tokens, event.keys};
    const auto node = makes_nodes() ? catalog_.find_or_add(before, event.hash, contents, event.salt)
                                    : directory.find(before, event.hash, contents);
    if (node == no_node) {
      if (makes_nodes()) {
        catalog_.lose_unwritten();
      }
      return;
    }
    attach(node, event.block);
    const auto record = directory.record_of(node);
    if (config_.write == write_policy::through && !catalog_.in_host_memory(record)) {
      want_ancestors_written(node, directory.number_of(event.block));
      pipeline_.want_written(record, event.block);
    }
  }

  [[gnu::noinline]] void leave_device(block_id block) noexcept {
    auto& directory = catalog_.directory();
    const auto is_written = config_.write == write_policy::on_eviction && !invalidating_;
    if ((is_written ? add_chain(block) : find_chain(block)) == no_node) {
      static_cast<void>(directory.detach(block));
      if (is_written) {
        catalog_.lose_unwritten();
      }
      return;
    }
    const auto number = directory.number_of(block);
    const auto node = directory.detach(block);
    const auto record = directory.record_of(node);
    if (invalidating_) {
      catalog_.withdraw(node);
    }
    if (directory.on_device(record)) {
      return;
    }
    const auto is_wanted = !directory.is_withdrawn(record) && config_.write != write_policy::through_hits;
    if (is_wanted) {
      want_ancestors_written(node, number);
    }
    if (catalog_.in_host_memory(record)) {
      catalog_.rank(record);
    } else if (is_wanted) {
      pipeline_.want_written(record, block);
    }
    catalog_.tidy(record);
  }

  void attach(node_id node, block_id block) noexcept {
    catalog_.directory().attach(node, block);
    if (const auto record = catalog_.directory().record_of(node); catalog_.in_host_memory(record)) {
      catalog_.unrank(record);
      catalog_.tidy(record);
    }
  }

  /// The node of a published device block, if its contents are known; `no_node` also if its ancestors are not all on the
  /// device.
  [[nodiscard]] node_id find_chain(block_id last) noexcept {
    return node_of_chain(last, [&](const auto& before, std::uint64_t hash, const block_contents& contents, salt) {
      return catalog_.directory().find(before, hash, contents);
    });
  }
  /// The same, made if it is new.
  [[nodiscard]] node_id add_chain(block_id last) noexcept {
    return node_of_chain(last, [&](const auto& before, std::uint64_t hash, const block_contents& contents, salt tag) {
      return catalog_.find_or_add(before, hash, contents, tag);
    });
  }
  /// Attaches the blocks of a chain to their nodes, as `node_of(before, hash, contents, salt)` gives them.
  template <class NodeOf>
  [[nodiscard]] node_id node_of_chain(block_id last, NodeOf&& node_of) noexcept {
    auto& directory = catalog_.directory();
    blocks_.clear();
    auto block = last;
    for (; block != no_block && directory.node_of_block(block) == no_node; block = device_->parent_in_index(block)) {
      blocks_.push_back(block);
    }
    if (blocks_.empty()) {
      return directory.node_of_block(last);
    }
    if (block == no_block && device_->parent(blocks_.back()) != no_block) {
      return no_node;
    }
    const auto tag =
        block == no_block ? device_->salt_of_first(blocks_.back()) : directory.salt_of(directory.node_of_block(block));
    auto before =
        block == no_block ? directory.tree().root(tag) : directory.tree().link(directory.node_of_block(block));
    constexpr auto num_ahead = std::size_t{16};
    for (auto left = blocks_.size(); left > 0; --left) {
      if ((blocks_.size() - left) % num_ahead == 0) {  // the cache lines that the next ones touch
        for (std::size_t i = 0; i < std::min(left, num_ahead); ++i) {
          directory.prefetch_addition(i, device_->link(blocks_[left - 1 - i]).hash);
        }
      }
      const auto there = blocks_[left - 1];
      const auto node = node_of(before, device_->link(there).hash, device_->contents(there), tag);
      if (node == no_node) {
        return no_node;
      }
      attach(node, there);
      before = directory.tree().link(node);
    }
    return before.node;
  }

  /// A record is of use only with those of its ancestors. Of a chain whose head the device keeps, because others share
  /// it, and whose tail goes, the head is written, too: as much as slower tiers could get at once, and the rest with
  /// the next tail. Blocks that got these contents after block number `number` got its own are left out: their K/V may
  /// not be there yet. Constant where the parent has a record.
  void want_ancestors_written([[maybe_unused]] node_id node, [[maybe_unused]] std::uint64_t number) noexcept {
    if constexpr (num_tiers != 1) {
      const auto& directory = catalog_.directory();
      const auto& tree = directory.tree();
      const auto most = pipeline_.num_more_writes();
      path_.clear();
      for (auto above = most == 0 ? no_node : tree.parent(node); above != no_node; above = tree.parent(above)) {
        const auto record = directory.record_of(above);
        if (catalog_.at(record).pending || directory.has_record(record)) {
          break;
        }
        const auto block = directory.oldest(above);
        if (block != no_block && directory.number_of(block) < number) {
          path_.emplace_back(record, block);
        }
      }
      base::want_path_written(path_, most);
    }
  }

  [[nodiscard]] static directory_type make_directory(const tier_sizes& sizes, std::int64_t num_records) {
    const auto sum = sizes.num_blocks + num_records;
    if (sum > std::int64_t{1} << 30) {
      detail::fail({error_code::size_overflow, "records of all tiers", sum, std::int64_t{1} << 30});
    }
    return directory_type(static_cast<std::int32_t>(sum), sizes.num_blocks, sizes.block_size, sizes.seed, num_tiers);
  }

  std::size_t block_size_;
  block_id last_shared_ = no_block;
  bool invalidating_ = false;
  const device_index* device_ = nullptr;
  std::vector<record_id> chain_;
  std::vector<std::pair<record_id, block_id>> path_;  // from a node's parent up
  std::vector<block_id> blocks_;                      // of the device, of a chain from its end up
};

}  // namespace pagedkv
