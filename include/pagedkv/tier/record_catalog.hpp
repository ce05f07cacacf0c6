#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/hash/concept.hpp>
#include <pagedkv/tier/orphan_records.hpp>
#include <pagedkv/tier/record_format.hpp>
#include <pagedkv/tier/record_key.hpp>
#include <pagedkv/tier/record_places.hpp>
#include <pagedkv/tier/slower_tiers.hpp>
#include <pagedkv/tier/tier_config.hpp>
#include <pagedkv/tier/tier_directory.hpp>
#include <pagedkv/tier/tier_statistics.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace pagedkv {

/// The sizes of a tiered cache that its store has to know.
struct tier_sizes {
  std::int32_t num_blocks = 0;  // of the device, capacity included
  std::int32_t block_size = 0;
  std::uint64_t seed = 0;
};

/// Which contents have a record in which tier, and which record makes room for another. It moves no bytes. One thread
/// at a time; only the constructor allocates, except for keys.
template <block_hash Hash, eviction_policy Eviction, tier... Slower>
class record_catalog {
 public:
  using directory_type = tier_directory<Hash>;
  using link_type = typename directory_type::link_type;
  static constexpr auto host = std::size_t{0};
  static constexpr auto num_tiers = 1 + sizeof...(Slower);
  static_assert(sizeof...(Slower) <= 8, "a tiered_cache has at most eight tiers behind host memory");

  /// Throws `exception`, `std::bad_alloc`, `std::system_error`.
  record_catalog(const tier_sizes& sizes, const tier_config& config, std::int32_t num_records,
                 const record_format& format, std::tuple<Slower...> slower)
      : exclusive_(config.exclusive),
        asks_(config.ask_ahead != 0),
        places_(num_records),
        slower_(std::move(slower), format, config),
        directory_(num_nodes(sizes, num_records, slower_), sizes.num_blocks, sizes.block_size, sizes.seed, num_tiers) {
    counts_.num_places = num_records;
    slower_.for_each([](std::size_t, auto& tier) {
      tier.counts.num_places = tier.has_places ? tier.places.num_places() : 0;
    });
  }
  record_catalog(const record_catalog&) = delete;
  record_catalog& operator=(const record_catalog&) = delete;

  [[nodiscard]] directory_type& directory() noexcept { return directory_; }
  [[nodiscard]] const directory_type& directory() const noexcept { return directory_; }
  [[nodiscard]] slower_tiers<Slower...>& slower() noexcept { return slower_; }

  /// Counts of a tier by its number; 0 is host memory.
  [[nodiscard]] tier_statistics& counts_of(std::size_t number) noexcept {
    auto* found = &counts_;
    slower_.for_each([&](std::size_t each, auto& tier) {
      if (each == number) {
        found = &tier.counts;
      }
    });
    return *found;
  }
  /// Whether there are records from before whose ancestors are missing.
  [[nodiscard]] bool has_orphans() const noexcept {
    auto any = false;
    slower_.for_each([&](std::size_t, const auto& tier) { any |= !tier.orphans.empty(); });
    return any;
  }
  [[nodiscard]] bool has_records() const noexcept { return counts_.num_records != 0 || num_slower_records_ != 0; }

  [[nodiscard]] tier_node& at(node_id node) noexcept { return directory_.at(node); }
  [[nodiscard]] const tier_node& at(node_id node) const noexcept { return directory_.at(node); }
  [[nodiscard]] bool in_host_memory(node_id node) const noexcept { return directory_.place(node, host) >= 0; }
  /// Whether a look-up may use a node: its K/V is in a tier, or on its way.
  [[nodiscard]] bool is_reachable(node_id node) const noexcept {
    return directory_.has_record(node) || at(node).loading;
  }

  /// As the directory's, but makes room where there is none: records that faults left without their ancestors' keep
  /// more nodes than records. The node before is in use.
  [[nodiscard]] node_id find_or_add(const link_type& before, std::uint64_t hash, const block_contents& contents,
                                    salt tag) noexcept {
    for (auto tries = 0; directory_.is_full() && tries < max_forgotten; ++tries) {
      forget_oldest();
    }
    const auto node = directory_.find_or_add(before, hash, contents, tag);
    if (node != no_node && has_orphans()) {
      adopt_behind(directory_.link(node), directory_.key(node), tag,
                   [this](node_id adopted, std::size_t number) { rank_in(adopted, number); });
    }
    return node;
  }

  template <class Visit>
  void for_each_alive(Visit&& visit) noexcept(noexcept(visit(no_node))) {
    directory_.for_each(visit);
  }

  void hold(node_id node) noexcept { directory_.hold(node); }
  void let_go(node_id node) noexcept {
    directory_.let_go(node);
    tidy(node);
  }
  /// Drops records that nothing needs any more, and then the node.
  void tidy(node_id node) noexcept {
    const auto& here = at(node);
    if (directory_.num_holders(node) == 0) {
      if (directory_.is_withdrawn(node)) {
        drop_records(node);
      } else if (exclusive_ && here.on_device() && here.due == 0 && in_host_memory(node)) {
        drop_host_record(node);
      }
    }
    directory_.prune(node);
  }

  /// With all that continues it. Its records, and theirs, stay until `end_invalidation`.
  void withdraw(node_id top) noexcept {
    if (!directory_.is_withdrawn(top)) {
      forget_orphans(directory_.salt_of(top));
      directory_.for_each_below(
          top, [&](node_id node) { num_stale_writes_ += directory_.withdraw(node) && at(node).writing ? 1 : 0; });
      withdrew_ = true;
    }
  }
  void forget(node_id node) noexcept {
    withdraw(node);
    tidy(node);
  }
  void forget_all() noexcept {
    for_each_alive([&](node_id node) { forget(node); });
    slower_.for_each([&](std::size_t, auto& tier) {
      while (!tier.orphans.empty()) {
        tier.orphans.take_any(erasure_from(tier));
      }
    });
    end_invalidation();
  }
  /// Has those of a salt erased: nothing tells which of them continue the chains that an invalidation means.
  void forget_orphans(salt tag) noexcept {
    slower_.for_each([&](std::size_t, auto& tier) { tier.orphans.take_with(tag, erasure_from(tier)); });
  }
  /// Forgets the nodes withdrawn since the last call, and erases records that places still hold although they left the
  /// catalog. Linear in the nodes and places.
  void end_invalidation() noexcept {
    if (std::exchange(withdrew_, false)) {
      for_each_alive([&](node_id node) { tidy(node); });
    }
    slower_.for_each([]<class Tier>(std::size_t, Tier& tier) {
      if constexpr (Tier::has_places) {
        tier.places.retire_unsure([&](std::int32_t place) { tier.queue.erase({}, place); });
      }
    });
  }

  // Host memory.

  /// A place, or −1. Reading and writing device memory, it is ordered after all batches before.
  [[nodiscard]] std::int32_t take_host_place(node_id node) noexcept {
    return places_.take(node, host_victim(), host_eviction());
  }
  void give_back_host_place(std::int32_t place) noexcept { places_.give_back(place); }
  void enter_host_memory(node_id node, std::int32_t place) noexcept {
    directory_.set_place(node, host, place);
    at(node).sealed = false;
    at(node).source = 0;
    ++counts_.num_records;
    if (!at(node).on_device()) {
      rank(node);
    }
  }
  /// Counts a record for which there is no room.
  void lose_unwritten() noexcept {
    ++counts_.handed_over;
    ++counts_.lost_writes;
  }
  /// Takes a record back whose copy failed.
  void lose_host_record(node_id node) noexcept {
    remove_host_record(node);
    ++counts_.lost_writes;
  }
  /// The device has the contents of a node, too.
  void unrank(node_id node) noexcept { places_.unrank(directory_.place(node, host)); }
  void rank(node_id node) noexcept {
    places_.rank(directory_.place(node, host), directory_.link(node).hash, directory_.depth(node));
  }
  /// A record that is in the order becomes its newest.
  void touch(node_id node) noexcept {
    if (in_host_memory(node) && places_.ranked(directory_.place(node, host))) {
      unrank(node);
      rank(node);
    }
  }

  /// Notes that slower tiers should get a record that they lack; while it is in host memory, it can be written.
  void owe(node_id node) noexcept {
    auto& here = at(node);
    if (!in_host_memory(node) || directory_.is_withdrawn(node)) {
      return;
    }
    num_waiting_ -= waits(here);
    slower_.for_each([&](std::size_t number, auto& tier) {
      if (directory_.place(node, number) < 0 && !is_due(node, number)) {
        here.due = static_cast<std::uint8_t>(here.due | bit_of(number));
        ++tier.counts.handed_over;
        ++tier.counts.num_owed;
      }
    });
    num_waiting_ += waits(here);
  }
  [[nodiscard]] bool is_due(node_id node, std::size_t number) const noexcept {
    return (at(node).due & bit_of(number)) != 0;
  }
  /// A node is held while it is written, and all that is to be erased of it is erased afterwards.
  void begin_write(node_id node) noexcept {
    hold(node);
    num_waiting_ -= waits(at(node));
    at(node).writing = true;
  }
  void end_write(node_id node) noexcept {
    at(node).writing = false;
    num_waiting_ += waits(at(node));
    num_stale_writes_ -= directory_.is_withdrawn(node) ? 1 : 0;
    let_go(node);
  }
  /// Records that are owed.
  [[nodiscard]] std::size_t num_waiting() const noexcept { return static_cast<std::size_t>(num_waiting_); }
  [[nodiscard]] bool is_owed(node_id node) const noexcept {
    return waits(at(node)) != 0 && !directory_.is_withdrawn(node);
  }
  /// A record that is owed, of a chain the first, or `no_node`, also when a short search does not find one.
  [[nodiscard]] node_id find_owed() noexcept {
    auto found = num_waiting_ == 0 ? no_node : places_.find([&](node_id node) { return is_owed(node); });
    for (auto above = found; above != no_node && is_owed(above); above = directory_.parent(above)) {
      found = above;
    }
    return found;
  }

  // Slower tiers: each as `slower()` gives it, with its number.

  /// A place, or −1.
  template <class Tier>
  [[nodiscard]] std::int32_t take_place(node_id node, std::size_t number, Tier& tier) noexcept {
    if (tier.places.is_full()) {
      tier.orphans.take_any([&](const found_record& record) { tier.places.give_back(record.place); });
    }
    return tier.places.take(node, victim_of(number), eviction_from(number, tier));
  }
  /// Takes back a place whose record was not written.
  template <class Tier>
  void give_back_place(std::int32_t place, Tier& tier) noexcept {
    if (Tier::has_places && tier.places.stale(place)) {
      erase_place({}, place, tier);
    } else {
      tier.places.give_back(place);
    }
  }
  /// A record that was due has been written.
  template <class Tier>
  void enter(node_id node, std::size_t number, std::int32_t place, Tier& tier) noexcept {
    directory_.set_place(node, number, place);
    at(node).due = static_cast<std::uint8_t>(at(node).due & ~bit_of(number));
    --tier.counts.num_owed;
    ++tier.counts.written;
    ++tier.counts.num_records;
    ++num_slower_records_;
    tier.places.note_written(place);
    tier.places.rank(place, directory_.link(node).hash, directory_.depth(node));
  }
  /// Room for the adoption of so many records. Throws `std::bad_alloc`.
  void reserve_adoptions(std::size_t count) { adopted_.reserve(count); }
  /// Enters the records from before that continue a chain with this end and this key, and those behind them:
  /// `adopted(node, number)` for each, with its tier's number; `rank_in` follows.
  template <class Adopted>
  void adopt_behind(link_type before, record_key key, salt tag, const Adopted& adopted) noexcept {
    for (;;) {
      slower_.for_each([&](std::size_t number, auto& tier) {
        tier.orphans.take_behind(key, [&](const found_record& record) {
          if (const auto node = adopt(record, before, tag, number, tier); node != no_node) {
            adopted_.push_back(node);
            adopted(node, number);
          }
        });
      });
      if (adopted_.empty()) {
        return;
      }
      before = directory_.link(adopted_.back());
      key = directory_.key(adopted_.back());
      adopted_.pop_back();
    }
  }
  template <class Tier>
  void rank_in(node_id node, std::size_t number, Tier& tier) noexcept {
    tier.places.rank(directory_.place(node, number), directory_.link(node).hash, directory_.depth(node));
  }
  void rank_in(node_id node, std::size_t number) noexcept {
    slower_.for_each([&](std::size_t each, auto& tier) {
      if (each == number) {
        rank_in(node, number, tier);
      }
    });
  }
  template <class Tier>
  void drop_record(node_id node, std::size_t number, Tier& tier) noexcept {
    const auto place = directory_.place(node, number);
    if (place < 0) {
      return;
    }
    clear(node, number, tier);
    tier.places.give_back(place);
  }
  /// Drops contents that nobody may find any more: erases them from the tier.
  template <class Tier>
  void erase_record(node_id node, std::size_t number, Tier& tier) noexcept {
    const auto place = directory_.place(node, number);
    if (place < 0) {
      return;
    }
    clear(node, number, tier);
    erase_place(directory_.key(node), place, tier);
  }
  /// Has a place erased that no node has any more; it is free afterwards.
  template <class Tier>
  void erase_place(const record_key& key, std::int32_t place, Tier& tier) noexcept {
    if constexpr (Tier::has_places) {
      tier.places.retire(place);
    } else {
      tier.places.give_back(place);
    }
    tier.queue.erase(key, place);
  }
  template <class Tier>
  void take_erased([[maybe_unused]] Tier& tier) noexcept {
    for (auto place = std::int64_t{0}; tier.queue.try_pop_erased(place);) {
      if constexpr (Tier::has_places) {
        tier.places.give_back_erased(static_cast<std::int32_t>(place));
      }
    }
  }
  /// Erases contents from tiers without places, which may have them although this cache does not know.
  void erase_unknown(const record_key& key) noexcept {
    slower_.for_each([&](std::size_t, auto& tier) {
      if (!tier.has_places) {
        tier.queue.erase(key, 0);
      }
    });
  }

  /// The fastest tier with a node's record; one without places for a node that it may have, unless it may still have
  /// contents that are to be erased. 0 for none.
  [[nodiscard]] std::size_t source_of(node_id node) noexcept {
    auto found = std::size_t{0};
    slower_.for_each([&](std::size_t number, auto&) {
      if (found == 0 && directory_.place(node, number) >= 0) {
        found = number;
      }
    });
    slower_.for_each([&](std::size_t number, auto& tier) {
      if (found == 0 && !tier.has_places && asks_ && num_stale_writes_ == 0 && tier.queue.num_erasing() == 0) {
        found = number;
      }
    });
    return found;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    auto bytes =
        directory_.metadata_bytes() + places_.metadata_bytes() + adopted_.capacity() * sizeof(node_id);
    slower_.for_each([&](std::size_t, const auto& tier) {
      bytes += tier.places.metadata_bytes() + tier.orphans.metadata_bytes();
    });
    return bytes;
  }

  /// Calls `broken(sentence)` for each broken invariant. `num_held`: nodes that are held, each once for each holder;
  /// `num_loading`: records that are being read.
  template <class Broken>
  void check_invariants(std::size_t num_held, std::size_t num_loading, const Broken& broken) {
    const auto require = [&](bool holds, const char* sentence) {
      if (!holds) {
        broken(sentence);
      }
    };
    auto num_records = std::int64_t{0};
    auto num_holders = std::size_t{0};
    auto num_read = std::size_t{0};
    auto num_waiting = std::int64_t{0};
    auto num_stale_writes = std::int64_t{0};
    for_each_alive([&](node_id node) {
      const auto& here = at(node);
      num_holders += directory_.num_holders(node);
      num_read += here.loading;
      num_waiting += waits(here);
      require(!here.pending, "tiers: a block waits to be copied after an operation");
      require(here.due == 0 || in_host_memory(node), "tiers: a record is owed that host memory has given up");
      num_stale_writes += directory_.is_withdrawn(node) && here.writing;
      if (const auto place = directory_.place(node, host); place >= 0) {
        ++num_records;
        require(places_.owner(place) == node, "tiers: the owner of a place is another node");
        require(places_.ranked(place) != here.on_device(), "tiers: a record is in the order and on the device");
        require(!exclusive_ || !here.on_device() || here.due != 0 || directory_.num_holders(node) != 0,
                "tiers: an exclusive record is on the device");
      }
      require(here.on_device() || directory_.num_holders(node) != 0 || directory_.has_record(node) ||
                  directory_.first_child(node) != no_node,
              "tiers: a node stays that nothing needs");
    });
    const auto& c = counts_;
    require(num_records == c.num_records, "tiers: host memory counts other records than there are");
    require(c.written + c.adopted + c.loaded_into == c.num_records + c.evictions + c.dropped,
            "tiers: counts of host memory do not add up");
    require(places_.num_taken() == num_records + static_cast<std::int64_t>(num_loading),
            "tiers: a place of host memory is lost");
    require(c.handed_over == c.written + c.lost_writes, "tiers: writes to host memory do not add up");
    require(num_waiting == num_waiting_, "tiers: writes that are owed do not add up");
    require(num_stale_writes == num_stale_writes_, "tiers: writes of invalidated records do not add up");
    require(num_read == num_loading, "tiers: loads under way do not add up");
    require(num_holders == num_held, "tiers: a node is held without a reason");
    slower_.for_each([&](std::size_t number, auto& tier) {
      const auto& s = tier.counts;
      auto num_there = std::int64_t{0};
      auto num_due = std::int64_t{0};
      for_each_alive([&](node_id node) {
        num_there += directory_.place(node, number) >= 0;
        num_due += is_due(node, number);
      });
      require(num_due == s.num_owed, "tiers: a slower tier counts other records as owed than there are");
      require(s.handed_over == s.written + s.lost_writes + s.num_owed, "tiers: writes to a slower tier do not add up");
      require(num_there == s.num_records, "tiers: a slower tier counts other records than there are");
      require(tier.places.num_taken() >= num_there + static_cast<std::int64_t>(tier.orphans.size()),
              "tiers: a place with a record is free");
      require(s.written + s.adopted == s.num_records + s.evictions + s.dropped,
              "tiers: counts of a slower tier do not add up");
    });
  }

 private:
  static constexpr auto max_forgotten = 16;  // for the room of one node

  [[nodiscard]] static std::int32_t num_nodes(const tier_sizes& sizes, std::int32_t num_records,
                                              slower_tiers<Slower...>& slower) {
    auto sum = std::int64_t{sizes.num_blocks} + num_records;
    slower.for_each([&](std::size_t, auto& tier) { sum += tier.places.num_places(); });
    if (sum > std::int64_t{1} << 30) {
      detail::fail({error_code::size_overflow, "records of all tiers", sum, std::int64_t{1} << 30});
    }
    return static_cast<std::int32_t>(sum);
  }

  void remove_host_record(node_id node) noexcept {
    const auto place = directory_.place(node, host);
    lose_due(node);
    directory_.clear_place(node, host);
    places_.give_back(place);
    --counts_.num_records;
  }
  void drop_host_record(node_id node) noexcept {
    remove_host_record(node);
    ++counts_.dropped;
  }
  void drop_records(node_id node) noexcept {
    if (in_host_memory(node)) {
      drop_host_record(node);
    }
    slower_.for_each([&](std::size_t number, auto& tier) { erase_record(node, number, tier); });
  }
  template <class Tier>
  void clear(node_id node, std::size_t number, Tier& tier) noexcept {
    directory_.clear_place(node, number);
    --tier.counts.num_records;
    --num_slower_records_;
    ++tier.counts.dropped;
  }

  [[nodiscard]] static constexpr unsigned bit_of(std::size_t number) noexcept { return 1U << (number - 1); }
  /// 1 if the node's record is to be written to a slower tier, and no write of it is under way.
  [[nodiscard]] static std::int64_t waits(const tier_node& node) noexcept { return node.due != 0 && !node.writing; }
  /// Host memory gives up a record: tiers that have not got it never will.
  void lose_due(node_id node) noexcept {
    auto& here = at(node);
    num_waiting_ -= waits(here);
    slower_.for_each([&](std::size_t number, auto& tier) {
      const auto lost = is_due(node, number) ? 1 : 0;
      tier.counts.num_owed -= lost;
      tier.counts.lost_writes += lost;
    });
    here.due = 0;
  }

  template <class Tier>
  [[nodiscard]] auto erasure_from(Tier& tier) noexcept {
    return [this, &tier](const found_record& record) { erase_place(record.identity.key, record.place, tier); };
  }
  /// The node of a record that continues a chain; `no_node` for one that no look-up could use, which is erased.
  template <class Tier>
  [[nodiscard]] node_id adopt(const found_record& record, const link_type& before, salt tag, std::size_t number,
                              Tier& tier) noexcept {
    const auto position = before.node == no_node ? 0 : (directory_.depth(before.node) + 1) * record.tokens.size();
    const auto follows =
        record.identity.salt == tag && static_cast<std::size_t>(record.identity.position) == position;
    const auto hash = directory_type::hash(before.hash, record.contents());
    const auto node = follows ? directory_.find_or_add(before, hash, record.contents(), tag) : no_node;
    if (node == no_node || directory_.place(node, number) >= 0) {
      erase_place(record.identity.key, record.place, tier);
      return no_node;
    }
    tier.places.assign(record.place, node);
    directory_.set_place(node, number, record.place);
    ++tier.counts.adopted;
    ++tier.counts.num_records;
    ++num_slower_records_;
    return node;
  }

  void forget_oldest() noexcept {
    static_cast<void>(places_.evict(host_victim(), host_eviction()));
    slower_.for_each([&](std::size_t number, auto& tier) {
      static_cast<void>(tier.places.evict(victim_of(number), eviction_from(number, tier)));
    });
  }

  /// Whether a node's record may make room in a tier.
  [[nodiscard]] eviction_answer may_go(node_id node, std::size_t number, bool anyway) const noexcept {
    if (directory_.num_holders(node) != 0) {
      return eviction_answer::fenced;
    }
    return !anyway && directory_.has_children(node, number) ? eviction_answer::has_children : eviction_answer::taken;
  }
  /// Not that of a record which is being read or written.
  [[nodiscard]] auto victim_of(std::size_t number) noexcept {
    return [this, number](node_id node, bool anyway) {
      return directory_.place(node, number) >= 0 ? may_go(node, number, anyway) : eviction_answer::fenced;
    };
  }
  [[nodiscard]] auto host_victim() noexcept { return victim_of(host); }
  [[nodiscard]] auto host_eviction() noexcept {
    return [this](node_id gone, std::int32_t) {
      lose_due(gone);
      directory_.clear_place(gone, host);
      --counts_.num_records;
      ++counts_.evictions;
      touch_slower(gone);
      tidy(gone);
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
  /// A record that leaves host memory becomes the newest where else it is.
  void touch_slower([[maybe_unused]] node_id node) noexcept {
    slower_.for_each([&](std::size_t number, auto& tier) {
      if (const auto place = directory_.place(node, number); place >= 0) {
        tier.places.unrank(place);
        rank_in(node, number, tier);
      }
    });
  }

  bool exclusive_;
  bool asks_;
  bool withdrew_ = false;  // since the last `end_invalidation`
  record_places<Eviction> places_;
  tier_statistics counts_;
  std::int64_t num_slower_records_ = 0;
  std::int64_t num_waiting_ = 0;       // owed records of which no write is under way
  std::int64_t num_stale_writes_ = 0;  // of nodes that were withdrawn meanwhile
  slower_tiers<Slower...> slower_;
  directory_type directory_;
  std::vector<node_id> adopted_;  // the nodes behind which others may follow
};

}  // namespace pagedkv
