#pragma once

#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/policy/backend/concept.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/tier/adopt_records.hpp>
#include <pagedkv/tier/host_tier.hpp>
#include <pagedkv/tier/record_catalog.hpp>
#include <pagedkv/tier/record_pipeline.hpp>
#include <pagedkv/tier/tier_config.hpp>
#include <pagedkv/tier/tier_statistics.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace pagedkv {

/// Everything that a tiered cache knows beyond its device: which contents have records where, and what is under way.
/// Hears what the device's cache does as events. One thread at a time; a failed transfer is a lost write or a miss.
///
/// A block that only the device has is in its index alone. It gets a node when it is to be written, or where a record
/// continues it.
template <locking Locking, swaps_blocks Backend, block_hash Hash, class Host, tier... Slower>
class tier_store {
 public:
  using catalog_type = record_catalog<Hash, typename Host::eviction_type, Slower...>;
  using pipeline_type = record_pipeline<Backend, typename Host::allocator_type, catalog_type>;
  using directory_type = typename catalog_type::directory_type;
  using device_index = prefix_index<Locking, Hash>;
  using stream = typename Backend::stream;
  static constexpr auto host = catalog_type::host;
  static constexpr auto num_tiers = catalog_type::num_tiers;

  /// Throws `exception`, `std::bad_alloc`.
  tier_store(const tier_sizes& sizes, const tier_config& config, Backend& backend, const block_storage_view& device,
             const record_format& format, Host host_tier, std::tuple<Slower...> slower)
      : config_(config),
        block_size_(static_cast<std::size_t>(sizes.block_size)),
        catalog_(sizes, config, host_tier.num_records, format, std::move(slower)),
        pipeline_(config, sizes.num_blocks, backend, device, format, std::move(host_tier.memory),
                  host_tier.num_records, catalog_) {
    chain_.reserve(static_cast<std::size_t>(sizes.num_blocks));
    path_.reserve(static_cast<std::size_t>(sizes.num_blocks));
    blocks_.reserve(static_cast<std::size_t>(sizes.num_blocks));
    detail::adopt_records(catalog_);
  }
  tier_store(const tier_store&) = delete;
  tier_store& operator=(const tier_store&) = delete;
  /// Waits for batches under way; they use memory of all parts. Records that were invalidated while they were written
  /// are erased.
  ~tier_store() {
    catalog_.slower().stop();
    pipeline_.end_executed();
    catalog_.slower().stop();
  }

  /// Before the first event.
  void attach(const device_index& index) noexcept { device_ = &index; }

  [[nodiscard]] pipeline_type& transfers() noexcept { return pipeline_; }
  [[nodiscard]] const pipeline_type& transfers() const noexcept { return pipeline_; }

  // Events of the device's cache.

  /// False where `stored` would change nothing.
  [[nodiscard]] bool hears_stored() const noexcept {
    return num_tiers != 1 || catalog_.directory().num_alive() != 0 || makes_nodes();
  }
  void stored(const cache_event& event) noexcept {
    auto& directory = catalog_.directory();
    directory.note_stored(event.block);
    if (event.origin == no_block || directory.node_of(event.origin) != no_node || makes_nodes()) {
      continue_known(event);
    }
  }

  void evicted(block_id block) noexcept {
    if (catalog_.directory().node_of(block) != no_node || config_.write == write_policy::on_eviction || invalidating_) {
      leave_device(block);
    } else {
      catalog_.directory().detach(block);
    }
  }

  void shared(block_id last) noexcept { last_shared_ = last; }

  /// Every block left the device's cache, and the K/V in the tiers is as useless.
  void reset() noexcept {
    catalog_.directory().detach_all([&](node_id node) {
      if (!catalog_.at(node).on_device() && catalog_.in_host_memory(node)) {
        catalog_.rank(node);  // transfers may hold it longer
      }
    });
    catalog_.forget_all();
  }

  /// Before the device's cache itself writes to blocks that were evicted, or gives back their memory.
  void flush(stream on) noexcept { pipeline_.flush(on); }

  // Look-ups.

  /// Whether a look-up could find anything.
  [[nodiscard]] bool may_know() const noexcept {
    return catalog_.has_records() || pipeline_.num_loading() != 0 || config_.ask_ahead != 0;
  }

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
         node = directory.parent(node)) {
      const auto block = catalog_.at(node).oldest;
      if (block != no_block && directory.num_hits(block) >= config_.hits_before_write && !directory.has_record(node)) {
        path_.push_back(node);
      }
    }
    want_path_written(path_.size());
  }

  /// The nodes that continue the device blocks shared last, from the prompt's block number `first` on, as far as their
  /// K/V is in a tier or on its way. The caller lets go of each. Valid until the next call.
  [[nodiscard]] std::span<const node_id> match(const token_run& prompt, salt tag, std::size_t first,
                                               std::size_t end) noexcept {
    const auto& directory = catalog_.directory();
    chain_.clear();
    auto before = directory.root(tag);
    if (first != 0) {
      const auto last = last_shared_ == no_block ? no_node
                        : config_.ask_ahead != 0 ? add_chain(last_shared_)
                                                 : find_chain(last_shared_);
      if (last == no_node) {
        return chain_;
      }
      before = directory.link(last);
    }
    auto num_asked = std::int32_t{0};
    auto hash = before.hash;
    for (auto i = first; i < end && chain_.size() < chain_.capacity(); ++i) {
      const auto contents = prompt.block(i, block_size_);
      hash = i < prompt.hashes.size() ? prompt.hashes[i] : directory_type::hash(hash, contents);
      auto node = directory.find(before, hash, contents);
      if (node == no_node || !catalog_.is_reachable(node)) {
        node = num_asked++ < config_.ask_ahead ? catalog_.find_or_add(before, hash, contents, tag) : no_node;
        if (node == no_node) {
          break;
        }
      }
      catalog_.hold(node);
      chain_.push_back(node);
      before = directory.link(node);
    }
    return chain_;
  }

  void let_go(node_id node) noexcept { catalog_.let_go(node); }

  [[nodiscard]] bool in_host_memory(node_id node) const noexcept { return catalog_.in_host_memory(node); }
  [[nodiscard]] bool is_loading(node_id node) const noexcept { return catalog_.at(node).loading; }

  /// Whether a load that began earlier can be taken: contents that were invalidated since then are not served.
  [[nodiscard]] bool is_ready(node_id node) const noexcept {
    return in_host_memory(node) && !catalog_.directory().is_withdrawn(node);
  }
  [[nodiscard]] bool is_awaited(node_id node) const noexcept {
    return is_loading(node) && !catalog_.directory().is_withdrawn(node);
  }

  /// The tier that a node's record comes from, for the counts.
  [[nodiscard]] std::int8_t source(node_id node) const noexcept { return catalog_.at(node).source; }

  /// Counts blocks that a sequence took from a tier.
  void count_hit(std::int8_t from) noexcept {
    auto& counts = catalog_.counts_of(static_cast<std::size_t>(from));
    ++counts.hit_blocks;
    counts.hit_tokens += static_cast<std::int64_t>(block_size_);
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
    auto before = directory.root(tag);
    for (std::size_t i = 0; i < run.tokens.size() / block_size_; ++i) {
      const auto contents = run.block(i, block_size_);
      const auto hash = directory_type::hash(before.hash, contents);
      const auto node = directory.find(before, hash, contents);
      if (node == no_node) {
        break;
      }
      before = directory.link(node);
      catalog_.hold(node);
      catalog_.withdraw(node);
      catalog_.let_go(node);
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
    catalog_.for_each_alive([&](node_id node) {
      if (catalog_.directory().begins_chain(node, tag)) {
        catalog_.forget(node);
      }
    });
  }

  void rename_blocks(std::span<const block_pair> moves) noexcept {
    for (const auto& [from, to] : moves) {
      catalog_.directory().rename_block(block_id{from}, block_id{to});
    }
  }

  /// Statistics of a tier by its number; 0 is host memory.
  [[nodiscard]] tier_statistics statistics(std::size_t number) noexcept {
    auto counts = catalog_.counts_of(number);
    catalog_.slower().for_each([&](std::size_t each, auto& tier) {
      if (each == number) {
        counts.num_erasing = static_cast<std::int64_t>(tier.queue.num_erasing());
        counts.num_orphans = static_cast<std::int64_t>(tier.orphans.size());
      }
    });
    return counts;
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return catalog_.metadata_bytes(); }

  /// A sentence for each broken invariant. For tests; may throw `std::bad_alloc`. `num_held`: nodes that loads of the
  /// caller hold, each once for each load.
  [[nodiscard]] std::vector<std::string> check_invariants(std::size_t num_held) {
    auto broken = std::vector<std::string>{};
    if (pipeline_.has_pending()) {
      broken.emplace_back("tiers: blocks wait to be copied after an operation");
    }
    catalog_.check_invariants(num_held + pipeline_.num_held(), pipeline_.num_loading(),
                              [&](const char* sentence) { broken.emplace_back(sentence); });
    return broken;
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
                                                : directory.node_of(event.origin);
    if (event.origin != no_block && (above == no_node || directory.is_withdrawn(above))) {
      if (makes_nodes()) {
        catalog_.lose_unwritten();
      }
      return;
    }
    const auto before = above == no_node ? directory.root(event.salt) : directory.link(above);
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
    if (config_.write == write_policy::through && !catalog_.in_host_memory(node)) {
      want_ancestors_written(node, directory.number_of(event.block));
      pipeline_.want_written(node, event.block);
    }
  }

  [[gnu::noinline]] void leave_device(block_id block) noexcept {
    auto& directory = catalog_.directory();
    const auto is_written = config_.write == write_policy::on_eviction && !invalidating_;
    if ((is_written ? add_chain(block) : find_chain(block)) == no_node) {
      directory.detach(block);
      if (is_written) {
        catalog_.lose_unwritten();
      }
      return;
    }
    const auto number = directory.number_of(block);
    const auto node = directory.detach(block);
    const auto& here = catalog_.at(node);
    if (invalidating_) {
      catalog_.withdraw(node);
    }
    if (here.on_device()) {
      return;
    }
    const auto is_wanted = !directory.is_withdrawn(node) && config_.write != write_policy::through_hits;
    if (is_wanted) {
      want_ancestors_written(node, number);
    }
    if (catalog_.in_host_memory(node)) {
      catalog_.rank(node);
    } else if (is_wanted) {
      pipeline_.want_written(node, block);
    }
    catalog_.tidy(node);
  }

  void attach(node_id node, block_id block) noexcept {
    catalog_.directory().attach(node, block);
    if (catalog_.in_host_memory(node)) {
      catalog_.unrank(node);
      catalog_.tidy(node);
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
    for (; block != no_block && directory.node_of(block) == no_node; block = device_->parent_in_index(block)) {
      blocks_.push_back(block);
    }
    if (blocks_.empty()) {
      return directory.node_of(last);
    }
    if (block == no_block && device_->parent(blocks_.back()) != no_block) {
      return no_node;
    }
    const auto tag =
        block == no_block ? device_->salt_of_first(blocks_.back()) : directory.salt_of(directory.node_of(block));
    auto before = block == no_block ? directory.root(tag) : directory.link(directory.node_of(block));
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
      before = directory.link(node);
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
      const auto most = pipeline_.num_more_writes();
      path_.clear();
      for (auto above = most == 0 ? no_node : directory.parent(node); above != no_node;
           above = directory.parent(above)) {
        const auto& there = catalog_.at(above);
        if (there.pending || directory.has_record(above)) {
          break;
        }
        if (there.on_device() && directory.number_of(there.oldest) < number) {
          path_.push_back(above);
        }
      }
      want_path_written(most);
    }
  }
  /// From the root on, so that no tier gets a record before those of its ancestors.
  void want_path_written(std::size_t most) noexcept {
    for (; !path_.empty() && most != 0; --most) {
      pipeline_.want_written(path_.back(), catalog_.at(path_.back()).oldest);
      path_.pop_back();
    }
  }

  tier_config config_;
  std::size_t block_size_;
  catalog_type catalog_;
  pipeline_type pipeline_;
  block_id last_shared_ = no_block;
  bool invalidating_ = false;
  const device_index* device_ = nullptr;
  std::vector<node_id> chain_;
  std::vector<node_id> path_;     // from a node's parent up
  std::vector<block_id> blocks_;  // the same, of the device
};

}  // namespace pagedkv
