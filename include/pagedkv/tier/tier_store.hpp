#pragma once

#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/policy/backend/concept.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/tier/host_tier.hpp>
#include <pagedkv/tier/persistent_tier.hpp>
#include <pagedkv/tier/record_places.hpp>
#include <pagedkv/tier/slower_tiers.hpp>
#include <pagedkv/tier/stream_marks.hpp>
#include <pagedkv/tier/tier_config.hpp>
#include <pagedkv/tier/tier_directory.hpp>
#include <pagedkv/tier/tier_statistics.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pagedkv {

/// The sizes of a tiered cache that its store has to know.
struct tier_sizes {
  std::int32_t num_blocks = 0;  // of the device, capacity included
  std::int32_t block_size = 0;
  std::uint64_t seed = 0;
};

/// Everything that a tiered cache knows beyond its device: which contents have records where, and what is under way.
/// Hears what the device's cache does as events. One thread at a time; a failed transfer is a lost write or a miss.
template <swaps_blocks Backend, block_hash Hash, class Host, tier... Slower>
class tier_store {
 public:
  using directory_type = tier_directory<Hash>;
  using link_type = typename directory_type::link_type;
  using stream = typename Backend::stream;
  static constexpr auto host = std::size_t{0};
  static constexpr auto num_tiers = 1 + sizeof...(Slower);
  static constexpr bool has_slower = sizeof...(Slower) != 0;

  /// Throws `exception`, `std::bad_alloc`.
  tier_store(const tier_sizes& sizes, const tier_config& config, Backend& backend, const block_storage_view& device,
             const record_format& format, Host host_tier, std::tuple<Slower...> slower)
      : config_(config),
        backend_(backend),
        device_(device),
        block_size_(static_cast<std::size_t>(sizes.block_size)),
        records_(std::move(host_tier.memory), format, host_tier.num_records),
        host_blocks_(records_.blocks(device)),
        places_(host_tier.num_records),
        slower_(std::move(slower), format, config),
        directory_(num_nodes(sizes, host_tier.num_records, slower_), sizes.num_blocks, sizes.block_size, sizes.seed,
                   num_tiers),
        marks_(backend) {
    const auto num_blocks = static_cast<std::size_t>(sizes.num_blocks);
    const auto num_records = static_cast<std::size_t>(host_tier.num_records);
    pending_.reserve(2 * num_blocks);
    pairs_.reserve(2 * num_blocks);
    copied_.reserve(2 * num_blocks);
    chain_.reserve(num_blocks);
    unwritten_.reserve(num_records);
    unread_.reserve(num_records);
    counts_.num_places = host_tier.num_records;
    slower_.for_each([](std::size_t, auto& tier) {
      tier.counts.num_places = tier.has_places ? tier.places.num_places() : 0;
    });
    adopt_records();
  }
  tier_store(const tier_store&) = delete;
  tier_store& operator=(const tier_store&) = delete;

  // Events of the device's cache.

  void stored(const cache_event& event) noexcept {
    const auto above = event.origin == no_block ? no_node : directory_.node_of(event.origin);
    if (event.origin != no_block && above == no_node) {
      ++counts_.lost_writes;
      return;
    }
    const auto before = above == no_node ? directory_.root(event.salt) : directory_.link(above);
    const auto node = find_or_add(before, event.hash, {event.tokens, event.keys}, event.salt);
    if (node == no_node) {
      ++counts_.lost_writes;
      return;
    }
    directory_.attach(node, event.block);
    if (const auto place = directory_.place(node, host); place >= 0) {
      places_.unrank(place);
      tidy(node);
    } else if (config_.write == write_policy::through) {
      want_written(node, event.block);
    }
  }

  void evicted(block_id block) noexcept {
    if (directory_.node_of(block) == no_node) {
      return;
    }
    const auto node = directory_.detach(block);
    const auto& here = directory_.at(node);
    if (invalidating_) {
      withdraw(node);
    }
    if (here.num_blocks != 0) {
      return;
    }
    if (const auto place = directory_.place(node, host); place >= 0) {
      rank(node, place);
    } else if (!here.withdrawn && config_.write != write_policy::through_hits) {
      want_written(node, block);
    }
    tidy(node);
  }

  void shared(block_id last) noexcept { last_shared_ = last; }

  /// Every block left the device's cache, and the K/V in the tiers is as useless.
  void reset() noexcept {
    directory_.detach_all();
    for_each_alive([&](node_id node) { forget(node); });
    withdrew_ = false;
  }

  // The operations of the cache that need more than the device.

  /// Whether blocks wait to be copied to host memory.
  [[nodiscard]] bool has_pending() const noexcept { return !pending_.empty(); }

  /// Copies what the device evicted, or should write through, to host memory, ahead of all that is enqueued on the
  /// stream from now on.
  void flush(stream on) noexcept {
    if (!pending_.empty()) {
      save_pending(on);
    }
  }

  /// Drops victims that lie in memory that is gone.
  void forget_pending() noexcept {
    for (const auto& [node, block] : pending_) {
      ++counts_.lost_writes;
      directory_.let_go(node);
      tidy(node);
    }
    pending_.clear();
  }

  /// Whether a look-up could find anything.
  [[nodiscard]] bool may_know() const noexcept {
    return counts_.num_records != 0 || num_slower_records_ != 0 || num_loading_ != 0 || config_.ask_ahead != 0;
  }

  /// Before an operation that may share device blocks.
  void forget_shared() noexcept { last_shared_ = no_block; }

  /// Counts a hit on the device blocks that were shared last, for `through_hits`.
  void note_hits() noexcept {
    if (config_.write != write_policy::through_hits || last_shared_ == no_block) {
      return;
    }
    for (auto node = directory_.node_of(last_shared_); node != no_node; node = directory_.parent(node)) {
      auto& here = directory_.at(node);
      ++here.num_hits;
      if (here.num_hits >= config_.hits_before_write && here.block != no_block && !directory_.has_record(node)) {
        want_written(node, here.block);
      }
    }
  }

  /// The nodes that continue the device blocks shared last, from the prompt's block number `first` on, as far as their
  /// K/V is in a tier or on its way. The caller lets go of each. Valid until the next call.
  [[nodiscard]] std::span<const node_id> match(const token_run& prompt, salt tag, std::size_t first,
                                               std::size_t end) noexcept {
    chain_.clear();
    auto before = directory_.root(tag);
    if (first != 0) {
      const auto last = last_shared_ == no_block ? no_node : directory_.node_of(last_shared_);
      if (last == no_node) {
        return chain_;
      }
      before = directory_.link(last);
    }
    auto num_asked = std::int32_t{0};
    auto hash = before.hash;
    for (auto i = first; i < end && chain_.size() < chain_.capacity(); ++i) {
      const auto contents = prompt.block(i, block_size_);
      hash = i < prompt.hashes.size() ? prompt.hashes[i] : directory_type::hash(hash, contents);
      auto node = directory_.find(before, hash, contents);
      if (node == no_node || !is_reachable(node)) {
        node = num_asked++ < config_.ask_ahead ? find_or_add(before, hash, contents, tag) : no_node;
        if (node == no_node) {
          break;
        }
      }
      directory_.hold(node);
      chain_.push_back(node);
      before = directory_.link(node);
    }
    return chain_;
  }

  void let_go(node_id node) noexcept {
    directory_.let_go(node);
    tidy(node);
  }

  [[nodiscard]] bool in_host_memory(node_id node) const noexcept { return directory_.place(node, host) >= 0; }
  [[nodiscard]] bool is_loading(node_id node) const noexcept { return directory_.at(node).loading; }

  /// The same for a load that began earlier: contents that were invalidated since then are not served.
  [[nodiscard]] bool is_ready(node_id node) const noexcept {
    return in_host_memory(node) && !directory_.at(node).withdrawn;
  }
  [[nodiscard]] bool is_awaited(node_id node) const noexcept {
    return is_loading(node) && !directory_.at(node).withdrawn;
  }

  /// The tier that a node's record comes from, for the counts.
  [[nodiscard]] std::int8_t source(node_id node) const noexcept { return directory_.at(node).source; }

  /// Enqueues the copy of records in host memory to these blocks of the device. All or nothing.
  [[nodiscard]] bool copy_to_device(std::span<const node_id> nodes, std::span<const block_id> blocks,
                                    stream on) noexcept {
    pairs_.clear();
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      pairs_.push_back({directory_.place(nodes[i], host), static_cast<std::int32_t>(blocks[i])});
    }
    if (!marks_.order(on) ||
        !backend_.swap_blocks(host_blocks_, device_, pairs_, swap_direction::from_host, on)) {
      counts_.failed_loads += std::ssize(nodes);
      return false;
    }
    marks_.note(on);
    for (const auto node : nodes) {
      touch(node);
    }
    return true;
  }

  /// Counts blocks that a sequence took from a tier.
  void count_hit(std::int8_t from) noexcept {
    auto& counts = counts_of(static_cast<std::size_t>(from));
    ++counts.hit_blocks;
    counts.hit_tokens += static_cast<std::int64_t>(block_size_);
  }

  /// Begins to load a node's record into host memory, from the fastest tier that has it. False when it has no room, or
  /// the load takes longer than computing.
  [[nodiscard]] bool load([[maybe_unused]] node_id node) noexcept {
    if constexpr (has_slower) {
      return start_load(node);
    } else {
      return false;
    }
  }

  /// Whether to load so many records rather than to compute their tokens, as far as speeds are known.
  [[nodiscard]] bool worth_loading([[maybe_unused]] std::span<const node_id> nodes) noexcept {
    if constexpr (has_slower) {
      if (config_.prefill_tokens_per_second != 0) {
        auto seconds = 0.0;
        slower_.for_each([&](std::size_t number, auto& tier) {
          const auto is_from = [&](node_id node) { return !in_host_memory(node) && source_of(node) == number; };
          const auto wanted = static_cast<std::size_t>(std::ranges::count_if(nodes, is_from));
          const auto speed = tier.queue.read_bytes_per_second();
          if (wanted != 0 && speed > 0) {
            const auto records = wanted + tier.queue.num_reads_waiting();
            seconds += static_cast<double>(records * records_.format().record_bytes()) / speed;
          }
        });
        const auto tokens = static_cast<double>(nodes.size() * block_size_);
        return seconds < tokens / static_cast<double>(config_.prefill_tokens_per_second);
      }
    }
    return true;
  }

  /// Takes what transfers have brought, and starts those that can begin.
  void progress() noexcept {
    if constexpr (has_slower) {
      take_completions();
      start_writes();
      start_reads();
    }
  }
  /// Executes waiting transfers on this thread, where there is none for them; returns how many.
  std::size_t run_transfers() noexcept {
    auto num_run = std::size_t{0};
    slower_.for_each([&](std::size_t, auto& tier) { num_run += tier.queue.run(); });
    return num_run;
  }
  /// Whether a transfer between host memory and a slower tier is under way, or waits to begin.
  [[nodiscard]] bool is_busy() noexcept {
    auto busy = !unwritten_.empty() || !unread_.empty();
    slower_.for_each([&](std::size_t, auto& tier) { busy |= tier.queue.num_inside() != 0; });
    return busy;
  }
  [[nodiscard]] transfer_signal& signal() noexcept { return slower_.signal(); }

  /// Until the end of an invalidation, evictions are of contents that must not be served again, nor those behind them.
  /// Linear in the records, if there were any.
  void begin_invalidation() noexcept { invalidating_ = true; }
  void end_invalidation() noexcept {
    invalidating_ = false;
    if (withdrew_) {
      withdrew_ = false;
      directory_.withdraw_descendants();
      for_each_alive([&](node_id node) { tidy(node); });
    }
  }
  void invalidate_prefix(const token_run& run, salt tag) noexcept {
    auto before = directory_.root(tag);
    for (std::size_t i = 0; i < run.tokens.size() / block_size_; ++i) {
      const auto contents = run.block(i, block_size_);
      const auto hash = directory_type::hash(before.hash, contents);
      const auto node = directory_.find(before, hash, contents);
      if (node == no_node) {
        break;
      }
      before = directory_.link(node);
      directory_.hold(node);
      forget(node);
      let_go(node);
    }
  }
  void invalidate_salt(salt tag) noexcept {
    for_each_alive([&](node_id node) {
      if (directory_.begins_chain(node, tag)) {
        forget(node);
      }
    });
  }

  void rename_blocks(std::span<const block_pair> moves) noexcept {
    for (const auto& [from, to] : moves) {
      directory_.rename_block(block_id{from}, block_id{to});
    }
  }

  /// Of a tier by its number; 0 is host memory.
  [[nodiscard]] tier_statistics statistics(std::size_t number) noexcept { return counts_of(number); }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return directory_.metadata_bytes() + places_.metadata_bytes();
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return records_.bytes(); }

  /// A sentence for each broken invariant. For tests; may throw `std::bad_alloc`. `num_held`: nodes that loads of the
  /// caller hold, each once for each load.
  [[nodiscard]] std::vector<std::string> check_invariants(std::size_t num_held) {
    auto broken = std::vector<std::string>{};
    const auto require = [&](bool holds, const char* sentence) {
      if (!holds) {
        broken.emplace_back(sentence);
      }
    };
    require(pending_.empty(), "tiers: blocks wait to be copied after an operation");
    auto num_records = std::int64_t{0};
    auto num_holders = std::size_t{0};
    auto num_loading = std::size_t{0};
    for_each_alive([&](node_id node) {
      const auto& here = directory_.at(node);
      num_holders += here.holders;
      num_loading += here.loading;
      if (const auto place = directory_.place(node, host); place >= 0) {
        ++num_records;
        require(places_.owner(place) == node, "tiers: the owner of a place is another node");
        require(places_.ranked(place) == (here.num_blocks == 0), "tiers: a record is in the order and on the device");
        require(!config_.exclusive || here.num_blocks == 0 || here.holders != 0,
                "tiers: an exclusive record is on the device");
      }
      require(here.num_blocks != 0 || here.holders != 0 || directory_.has_record(node) || has_child(node),
              "tiers: a node stays that nothing needs");
    });
    const auto& c = counts_;
    require(num_records == c.num_records, "tiers: host memory counts other records than there are");
    require(c.written + c.adopted + c.loaded_into == c.num_records + c.evictions + c.dropped,
            "tiers: counts of host memory do not add up");
    require(places_.num_taken() == num_records + static_cast<std::int64_t>(num_loading),
            "tiers: a place of host memory is lost");
    require(num_loading == num_loading_, "tiers: loads under way do not add up");
    require(num_holders == num_held + num_loading_ + num_writing_, "tiers: a node is held without a reason");
    slower_.for_each([&](std::size_t number, auto& tier) {
      const auto& s = tier.counts;
      auto num_there = std::int64_t{0};
      for_each_alive([&](node_id node) { num_there += directory_.place(node, number) >= 0; });
      require(num_there == s.num_records, "tiers: a slower tier counts other records than there are");
      require(s.written + s.adopted == s.num_records + s.evictions + s.dropped,
              "tiers: counts of a slower tier do not add up");
    });
    return broken;
  }

 private:
  static constexpr auto max_forgotten = 16;  // for the room of one node

  struct saved_block {
    node_id node;
    block_id block;
  };
  struct awaited {
    node_id node;
    std::size_t tier;
    std::int32_t place;
    std::uint64_t batch;  // of copies, after which the transfer may begin
  };

  [[nodiscard]] static std::int32_t num_nodes(const tier_sizes& sizes, std::int32_t num_records,
                                              slower_tiers<Slower...>& slower) {
    auto sum = 2 * std::int64_t{sizes.num_blocks} + num_records;
    slower.for_each([&](std::size_t, auto& tier) { sum += tier.places.num_places(); });
    if (sum > std::int64_t{1} << 30) {
      detail::fail({error_code::size_overflow, "records of all tiers", sum, std::int64_t{1} << 30});
    }
    return static_cast<std::int32_t>(sum);
  }

  template <class Visit>
  void for_each_alive(Visit&& visit) noexcept(noexcept(visit(no_node))) {
    for (std::size_t i = 0; i < directory_.num_nodes(); ++i) {
      if (directory_.at(to_node(i)).alive) {
        visit(to_node(i));
      }
    }
  }
  [[nodiscard]] bool has_child(node_id node) const {
    for (std::size_t i = 0; i < directory_.num_nodes(); ++i) {
      if (directory_.at(to_node(i)).alive && directory_.parent(to_node(i)) == node) {
        return true;
      }
    }
    return false;
  }

  [[nodiscard]] tier_statistics& counts_of(std::size_t number) noexcept {
    auto* found = &counts_;
    slower_.for_each([&](std::size_t each, auto& tier) {
      if (each == number) {
        found = &tier.counts;
      }
    });
    return *found;
  }

  [[nodiscard]] bool is_reachable(node_id node) const noexcept {
    return directory_.has_record(node) || directory_.at(node).loading;
  }

  /// As the directory's, but makes room where there is none: records that faults left without their ancestors' keep
  /// more nodes than records. The node before is in use.
  [[nodiscard]] node_id find_or_add(const link_type& before, std::uint64_t hash, const block_contents& contents,
                                    salt tag) noexcept {
    for (auto tries = 0; directory_.is_full() && tries < max_forgotten; ++tries) {
      forget_oldest();
    }
    return directory_.find_or_add(before, hash, contents, tag);
  }
  void forget_oldest() noexcept {
    static_cast<void>(places_.evict(host_victim(), host_eviction()));
    slower_.for_each([&](std::size_t number, auto& tier) {
      static_cast<void>(tier.places.evict(victim_of(number), eviction_from(number, tier)));
    });
  }

  void rank(node_id node, std::int32_t place) noexcept {
    places_.rank(place, directory_.link(node).hash, directory_.at(node).depth);
  }
  /// A record that is in the order becomes its newest.
  void touch(node_id node) noexcept {
    const auto place = directory_.place(node, host);
    if (place >= 0 && places_.ranked(place)) {
      places_.unrank(place);
      rank(node, place);
    }
  }

  void want_written(node_id node, block_id block) noexcept {
    if (pending_.size() == pending_.capacity()) {
      ++counts_.lost_writes;
      return;
    }
    directory_.hold(node);
    pending_.push_back({node, block});
  }

  /// Drops records that nothing needs any more, and then the node.
  void tidy(node_id node) noexcept {
    const auto& here = directory_.at(node);
    if (here.holders == 0) {
      if (here.withdrawn) {
        drop_records(node);
      } else if (config_.exclusive && here.num_blocks != 0 && in_host_memory(node)) {
        drop_host_record(node);
      }
    }
    directory_.prune(node);
  }
  void withdraw(node_id node) noexcept {
    if (!directory_.at(node).withdrawn) {
      directory_.withdraw(node);
      withdrew_ = true;
    }
  }
  void forget(node_id node) noexcept {
    withdraw(node);
    tidy(node);
  }
  void drop_host_record(node_id node) noexcept {
    const auto place = directory_.place(node, host);
    directory_.clear_place(node, host);
    places_.give_back(place);
    --counts_.num_records;
    ++counts_.dropped;
  }
  void drop_records(node_id node) noexcept {
    if (in_host_memory(node)) {
      drop_host_record(node);
    }
    slower_.for_each([&](std::size_t number, auto& tier) { drop_record(node, number, tier); });
  }
  template <class Tier>
  void drop_record(node_id node, std::size_t number, Tier& tier) noexcept {
    const auto place = directory_.place(node, number);
    if (place < 0) {
      return;
    }
    directory_.clear_place(node, number);
    tier.places.give_back(place);
    --tier.counts.num_records;
    --num_slower_records_;
    ++tier.counts.dropped;
  }

  /// Whether a node's record may make room in a tier.
  [[nodiscard]] eviction_answer may_go(node_id node, std::size_t number, bool anyway) const noexcept {
    if (directory_.at(node).holders != 0) {
      return eviction_answer::fenced;
    }
    return !anyway && directory_.has_children(node, number) ? eviction_answer::has_children : eviction_answer::taken;
  }

  /// A place in host memory, or −1. Reading and writing device memory, it is ordered after all batches before.
  [[nodiscard]] std::int32_t take_host_place(node_id node) noexcept {
    return places_.take(node, host_victim(), host_eviction());
  }
  [[nodiscard]] auto host_victim() noexcept {
    // Not a record that is being read.
    return [this](node_id node, bool anyway) {
      return in_host_memory(node) ? may_go(node, host, anyway) : eviction_answer::fenced;
    };
  }
  [[nodiscard]] auto host_eviction() noexcept {
    return [this](node_id gone, std::int32_t) {
      directory_.clear_place(gone, host);
      --counts_.num_records;
      ++counts_.evictions;
      touch_slower(gone);
      tidy(gone);
    };
  }

  /// A record that leaves host memory becomes the newest where else it is.
  void touch_slower([[maybe_unused]] node_id node) noexcept {
    slower_.for_each([&](std::size_t number, auto& tier) {
      if (const auto place = directory_.place(node, number); place >= 0) {
        tier.places.unrank(place);
        tier.places.rank(place, directory_.link(node).hash, directory_.at(node).depth);
      }
    });
  }

  [[gnu::noinline]] void save_pending(stream on) noexcept {
    pairs_.clear();
    copied_.clear();
    for (const auto& [node, block] : pending_) {
      if (in_host_memory(node) || directory_.at(node).withdrawn) {
        continue;
      }
      const auto place = take_host_place(node);
      if (place < 0) {
        ++counts_.lost_writes;
        continue;
      }
      enter_host_memory(node, place);
      pairs_.push_back({static_cast<std::int32_t>(block), place});
      copied_.push_back(node);
    }
    const bool copied =
        pairs_.empty() || (marks_.order(on) &&
                           backend_.swap_blocks(device_, host_blocks_, pairs_, swap_direction::to_host, on));
    if (!copied) {
      lose_copies();
    } else if (!pairs_.empty()) {
      marks_.note(on);
      counts_.written += std::ssize(copied_);
      pass_on_copies();
    }
    for (const auto& [node, block] : pending_) {
      directory_.let_go(node);
      tidy(node);
    }
    pending_.clear();
    progress();
  }
  void enter_host_memory(node_id node, std::int32_t place) noexcept {
    directory_.set_place(node, host, place);
    directory_.at(node).sealed = false;
    directory_.at(node).source = 0;
    ++counts_.num_records;
    if (directory_.at(node).num_blocks == 0) {
      rank(node, place);
    }
  }
  void lose_copies() noexcept {
    for (const auto node : copied_) {
      const auto place = directory_.place(node, host);
      directory_.clear_place(node, host);
      places_.give_back(place);
      --counts_.num_records;
      ++counts_.lost_writes;
    }
  }
  /// Slower tiers get what host memory got, once it is there.
  void pass_on_copies() noexcept {
    if constexpr (has_slower) {
      for (const auto node : copied_) {
        if (unwritten_.size() == unwritten_.capacity()) {
          ++counts_of(1).lost_writes;
          continue;
        }
        directory_.hold(node);
        ++num_writing_;
        unwritten_.push_back({node, 1, 0, marks_.begun()});
      }
    }
  }

  void start_writes() noexcept {
    const auto done = marks_.done();
    const auto ready = std::ranges::find_if(unwritten_, [&](const awaited& each) { return each.batch > done; });
    for (auto each = unwritten_.begin(); each != ready; ++each) {
      write_on(each->node, 1);
    }
    unwritten_.erase(unwritten_.begin(), ready);
  }

  /// Writes a node's host record to the next tiers from `number` on that lack it, one after the other.
  void write_on(node_id node, std::size_t number) noexcept {
    for (; number < num_tiers; ++number) {
      const auto wanted = !directory_.at(node).withdrawn && directory_.place(node, number) < 0;
      if (wanted && start_write(node, number)) {
        return;
      }
    }
    --num_writing_;
    let_go(node);
  }
  [[nodiscard]] bool start_write(node_id node, std::size_t number) noexcept {
    return slower_.template with<bool>(number, [&](auto& tier) {
      const auto place = take_place(node, number, tier);
      auto job = job_for(node, directory_.place(node, host), place);
      job.writes = true;
      job.sealed = directory_.at(node).sealed;
      if (place >= 0 && tier.queue.try_push(job)) {
        return true;
      }
      give_back(place, tier);
      ++tier.counts.lost_writes;
      return false;
    });
  }
  template <class Tier>
  [[nodiscard]] std::int32_t take_place(node_id node, std::size_t number, Tier& tier) noexcept {
    return tier.places.take(node, victim_of(number), eviction_from(number, tier));
  }
  [[nodiscard]] auto victim_of(std::size_t number) noexcept {
    return [this, number](node_id node, bool anyway) {
      return directory_.place(node, number) >= 0 ? may_go(node, number, anyway) : eviction_answer::fenced;
    };
  }
  template <class Tier>
  [[nodiscard]] auto eviction_from(std::size_t number, Tier& tier) noexcept {
    return [this, number, &tier](node_id gone, std::int32_t) {
      directory_.clear_place(gone, number);
      --tier.counts.num_records;
      --num_slower_records_;
      ++tier.counts.evictions;
      directory_.prune(gone);
    };
  }
  template <class Tier>
  void give_back(std::int32_t place, Tier& tier) noexcept {
    if (place >= 0) {
      tier.places.give_back(place);
    }
  }
  [[nodiscard]] record_job job_for(node_id node, std::int32_t host_place, std::int32_t place) const noexcept {
    const auto& here = directory_.at(node);
    auto job = record_job{};
    job.identity = {here.key, directory_.parent_key(node), here.salt,
                    static_cast<std::int64_t>(here.depth) * static_cast<std::int64_t>(block_size_),
                    directory_.contents(node)};
    job.transfer = {here.key, place, records_.record(host_place)};
    job.node = node;
    job.host_place = host_place;
    return job;
  }

  /// The fastest tier with a node's record; one without places for a node that is asked for unheard. 0 for none.
  [[nodiscard]] std::size_t source_of(node_id node) noexcept {
    auto found = std::size_t{0};
    slower_.for_each([&](std::size_t number, auto&) {
      if (found == 0 && directory_.place(node, number) >= 0) {
        found = number;
      }
    });
    slower_.for_each([&](std::size_t number, auto& tier) {
      if (found == 0 && !tier.has_places && config_.ask_ahead != 0) {
        found = number;
      }
    });
    return found;
  }

  [[nodiscard]] bool start_load(node_id node) noexcept {
    const auto number = source_of(node);
    if (number == 0) {
      return false;
    }
    const auto place = unread_.size() < unread_.capacity() ? take_host_place(node) : -1;
    if (place < 0) {
      ++counts_of(number).refused_loads;
      return false;
    }
    directory_.hold(node);
    auto& here = directory_.at(node);
    here.loading = true;
    here.source = static_cast<std::int8_t>(number);
    ++num_loading_;
    unread_.push_back({node, number, place, marks_.begun()});
    return true;
  }
  /// Reads begin when the copies that used their host records before have been executed.
  void start_reads() noexcept {
    const auto done = marks_.done();
    const auto ready = std::ranges::find_if(unread_, [&](const awaited& each) { return each.batch > done; });
    for (auto each = unread_.begin(); each != ready; ++each) {
      const auto started = slower_.template with<bool>(each->tier, [&](auto& tier) {
        const auto place = std::max(directory_.place(each->node, each->tier), std::int32_t{0});
        return tier.queue.try_push(job_for(each->node, each->place, place));
      });
      if (!started) {
        ++counts_of(each->tier).refused_loads;
        end_load(each->node, each->place, false);
      }
    }
    unread_.erase(unread_.begin(), ready);
  }
  /// `read`: the record is in its place, whole.
  void end_load(node_id node, std::int32_t place, bool read) noexcept {
    auto& here = directory_.at(node);
    here.loading = false;
    --num_loading_;
    if (read && !in_host_memory(node)) {
      const auto source = here.source;
      enter_host_memory(node, place);
      here.sealed = true;
      here.source = source;
      ++counts_.loaded_into;
    } else {
      places_.give_back(place);
    }
    let_go(node);
  }

  void take_completions() noexcept {
    slower_.for_each([&](std::size_t number, auto& tier) {
      auto job = record_job{};
      while (tier.queue.try_pop(job)) {
        if (job.writes) {
          end_write(job, number, tier);
        } else {
          end_read(job, number, tier);
        }
      }
    });
  }
  template <class Tier>
  void end_write(const record_job& job, std::size_t number, Tier& tier) noexcept {
    const auto place = static_cast<std::int32_t>(job.transfer.place);
    auto& here = directory_.at(job.node);
    here.sealed = here.sealed || job.sealed;
    if (job.outcome == transfer_outcome::done) {
      note_record(job.node, number, place, tier);
      ++tier.counts.written;
    } else {
      give_back(place, tier);
      ++tier.counts.lost_writes;
    }
    write_on(job.node, number + 1);
  }
  template <class Tier>
  void note_record(node_id node, std::size_t number, std::int32_t place, Tier& tier) noexcept {
    directory_.set_place(node, number, place);
    ++tier.counts.num_records;
    ++num_slower_records_;
    tier.places.rank(place, directory_.link(node).hash, directory_.at(node).depth);
  }
  template <class Tier>
  void end_read(const record_job& job, std::size_t number, Tier& tier) noexcept {
    const auto whole = job.outcome == transfer_outcome::done && !job.damaged;
    if (whole) {
      ++tier.counts.loads;
    } else if (job.outcome == transfer_outcome::missing) {
      ++tier.counts.missing_loads;
    } else {
      ++tier.counts.failed_loads;
    }
    if (job.outcome == transfer_outcome::missing || job.damaged) {
      drop_record(job.node, number, tier);
    }
    end_load(job.node, job.host_place, whole);
  }

  struct key_hash {
    std::size_t operator()(const record_key& key) const noexcept { return static_cast<std::size_t>(key.low); }
  };
  /// A record that a tier has from before.
  struct found_record {
    std::int32_t place;
    record_identity identity;  // without contents
    std::vector<token> tokens;
    std::vector<prefix_key> keys;
  };

  /// Takes over the records that tiers have from before, as far as all their ancestors are there. Throws
  /// `std::bad_alloc`.
  void adopt_records() {
    slower_.for_each([&]<class Tier>(std::size_t number, Tier& tier) {
      if constexpr (persistent_tier<std::remove_cvref_t<decltype(tier.queue.tier())>>) {
        adopt_records(number, tier);
      }
    });
  }
  template <class Tier>
  void adopt_records(std::size_t number, Tier& tier) {
    auto found = std::vector<found_record>{};
    tier.queue.tier().for_each_record([&](std::int64_t place, const record_identity& identity) {
      if (place < tier.places.num_places()) {
        const auto& contents = identity.contents;
        found.push_back({static_cast<std::int32_t>(place),
                         identity,
                         {contents.tokens.begin(), contents.tokens.end()},
                         {contents.keys.begin(), contents.keys.end()}});
      }
    });
    std::ranges::stable_sort(found, {}, [](const found_record& record) { return record.identity.position; });
    auto known = std::unordered_map<record_key, node_id, key_hash>{};
    auto adopted = std::vector<node_id>{};
    adopted.reserve(found.size());
    for (const auto& record : found) {
      if (const auto node = node_for(record, known); node != no_node && directory_.place(node, number) < 0) {
        known[record.identity.key] = node;
        tier.places.claim(record.place, node);
        directory_.set_place(node, number, record.place);
        adopted.push_back(node);
      }
    }
    tier.places.end_claims();
    tier.counts.adopted = tier.counts.num_records = std::ssize(adopted);
    num_slower_records_ += std::ssize(adopted);
    for (auto i = adopted.size(); i > 0; --i) {  // tails first, as the oldest
      const auto node = adopted[i - 1];
      tier.places.rank(directory_.place(node, number), directory_.link(node).hash, directory_.at(node).depth);
    }
  }
  template <class Known>
  [[nodiscard]] node_id node_for(const found_record& record, const Known& known) noexcept {
    const auto& identity = record.identity;
    const auto contents = block_contents{record.tokens, record.keys};
    if (identity.key != chained_key(identity.parent, contents)) {
      return no_node;
    }
    auto before = directory_.root(identity.salt);
    if (identity.position != 0) {
      const auto above = known.find(identity.parent);
      const auto follows = above != known.end() && directory_.at(above->second).salt == identity.salt &&
                           (directory_.at(above->second).depth + 1) * block_size_ ==
                               static_cast<std::size_t>(identity.position);
      if (!follows) {
        return no_node;
      }
      before = directory_.link(above->second);
    } else if (identity.parent != root_key(identity.salt)) {
      return no_node;
    }
    return directory_.find_or_add(before, directory_type::hash(before.hash, contents), contents, identity.salt);
  }

  tier_config config_;
  Backend& backend_;
  block_storage_view device_;
  std::size_t block_size_;
  detail::host_records<typename Host::allocator_type> records_;
  block_storage_view host_blocks_;
  record_places<typename Host::eviction_type> places_;
  slower_tiers<Slower...> slower_;
  directory_type directory_;
  stream_marks<Backend> marks_;
  tier_statistics counts_;
  std::int64_t num_slower_records_ = 0;
  std::size_t num_loading_ = 0;  // records that are being read
  std::size_t num_writing_ = 0;  // nodes that are being written, tier after tier
  block_id last_shared_ = no_block;
  bool invalidating_ = false;
  bool withdrew_ = false;  // in this invalidation
  std::vector<saved_block> pending_;
  std::vector<awaited> unwritten_;
  std::vector<awaited> unread_;
  std::vector<block_pair> pairs_;
  std::vector<node_id> copied_;
  std::vector<node_id> chain_;
};

}  // namespace pagedkv
