#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/tier/orphan_records.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_places.hpp>
#include <pagedkv/tier/record_table.hpp>
#include <pagedkv/tier/slower_tiers.hpp>
#include <pagedkv/tier/tier_config.hpp>
#include <pagedkv/tier/tier_statistics.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace pagedkv {

/// Which contents have a record in which tier, and which record makes room for another. It moves no bytes. One thread
/// at a time; only the constructor allocates, except for keys.
template <class Directory, eviction_policy Eviction, tier... Slower>
class record_catalog {
 public:
  using directory_type = Directory;
  using link_type = typename directory_type::link_type;
  static constexpr auto host = std::size_t{0};
  static constexpr auto num_tiers = 1 + sizeof...(Slower);
  static_assert(sizeof...(Slower) <= 8, "a tiered_cache has at most eight tiers behind host memory");

  /// `make_directory(num_records)`: one for so many records in all tiers. Throws `exception`, `std::bad_alloc`,
  /// `std::system_error`.
  template <class MakeDirectory>
  record_catalog(const tier_config& config, std::int32_t num_records, const record_format& format,
                 std::tuple<Slower...> slower, MakeDirectory&& make_directory)
      : exclusive_(config.exclusive),
        asks_(config.ask_ahead != 0),
        places_(num_records),
        slower_(std::move(slower), format, config),
        directory_(make_directory(count_records(num_records, slower_))) {
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

  [[nodiscard]] record_facts& at(record_id record) noexcept { return directory_.at(record); }
  [[nodiscard]] const record_facts& at(record_id record) const noexcept { return directory_.at(record); }
  [[nodiscard]] bool in_host_memory(record_id record) const noexcept { return directory_.place(record, host) >= 0; }
  /// Whether a look-up may use a record: its K/V is in a tier, or on its way.
  [[nodiscard]] bool is_reachable(record_id record) const noexcept {
    return directory_.has_record(record) || at(record).loading;
  }

  /// As the directory's, but makes room where there is none: records that faults left without their ancestors' keep
  /// more nodes than records. The node before is in use.
  [[nodiscard]] node_id find_or_add(const link_type& before, std::uint64_t hash, const block_contents& contents,
                                    salt tag) noexcept {
    make_room_for_nodes();
    const auto node = directory_.find_or_add(before, hash, contents, tag);
    if (node != no_node) {
      adopt_orphans(node);
    }
    return node;
  }
  /// Removes old records until a node can be added.
  void make_room_for_nodes() noexcept {
    for (auto tries = 0; directory_.tree().is_full() && tries < max_forgotten; ++tries) {
      forget_oldest();
    }
  }
  /// Adopts the records from before that continue a node.
  void adopt_orphans(node_id node) noexcept {
    if (has_orphans()) {
      adopt_behind(directory_.tree().link(node), directory_.key(node), directory_.salt_of(node),
                   [this](record_id adopted, std::size_t number) { rank_in(adopted, number); });
    }
  }

  /// Calls `visit(record)` on the records that nodes have or could have; it may remove any node.
  template <class Visit>
  void for_each_possible(Visit&& visit) const noexcept(noexcept(visit(no_record))) {
    directory_.tree().for_each([&](node_id node) noexcept(noexcept(visit(no_record))) { visit_records(node, visit); });
  }

  void hold(record_id record) noexcept { directory_.hold(record); }
  void let_go(record_id record) noexcept {
    directory_.let_go(record);
    tidy(record);
  }
  /// Drops a record that nothing needs any more, and then its node.
  void tidy(record_id record) noexcept {
    const auto& here = at(record);
    if (here.num_holders == 0) {
      if (directory_.is_withdrawn(record)) {
        drop_from_all(record);
      } else if (exclusive_ && directory_.on_device(record) && here.due == 0 && in_host_memory(record)) {
        drop_host_record(record);
      }
    }
    directory_.prune(directory_.node_of(record));
  }

  /// Withdraws a node with all that continues it. Its records, and theirs, stay until `end_invalidation`.
  void withdraw(node_id top) noexcept {
    if (!directory_.tree().is_withdrawn(top)) {
      forget_orphans(directory_.salt_of(top));
      directory_.tree().for_each_below(top, [&](node_id node) {
        if (directory_.tree().withdraw(node)) {
          note_withdrawn(node);
        }
      });
    }
  }
  /// A node has been withdrawn.
  void note_withdrawn(node_id node) noexcept {
    visit_records(node, [&](record_id record) { num_stale_writes_ += at(record).writing ? 1 : 0; });
    withdrew_ = true;
  }
  /// The nodes' owner has withdrawn some of them. Linear in the nodes.
  void note_withdrawals() noexcept {
    num_stale_writes_ = 0;
    directory_.tree().for_each([&](node_id node) {
      if (directory_.tree().is_withdrawn(node)) {
        forget_orphans(directory_.salt_of(node));
        note_withdrawn(node);
      }
    });
  }
  void forget_all() noexcept {
    directory_.tree().for_each([&](node_id node) { withdraw(node); });
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
      directory_.tree().for_each([&](node_id node) {
        if (directory_.tree().is_withdrawn(node)) {
          forget(node);
        }
      });
    }
    slower_.for_each([]<class Tier>(std::size_t, Tier& tier) {
      if constexpr (Tier::has_places) {
        tier.places.retire_unsure([&](std::int32_t place) { tier.queue.erase({}, place); });
      }
    });
  }

  // Host memory.

  /// A place, or −1. Reading and writing device memory, it is ordered after all batches before.
  [[nodiscard]] std::int32_t take_host_place(record_id record) noexcept {
    return places_.take(record, host_victim(), host_eviction());
  }
  void give_back_host_place(std::int32_t place) noexcept { places_.give_back(place); }
  void enter_host_memory(record_id record, std::int32_t place) noexcept {
    directory_.set_place(record, host, place);
    at(record).sealed = false;
    at(record).source = 0;
    ++counts_.num_records;
    if (!directory_.on_device(record)) {
      rank(record);
    }
  }
  /// Counts a record for which there is no room.
  void lose_unwritten() noexcept {
    ++counts_.handed_over;
    ++counts_.lost_writes;
  }
  /// Takes a record back whose copy failed.
  void lose_host_record(record_id record) noexcept {
    remove_host_record(record);
    ++counts_.lost_writes;
  }
  /// The device has the contents of a record, too.
  void unrank(record_id record) noexcept { places_.unrank(directory_.place(record, host)); }
  void rank(record_id record) noexcept {
    places_.rank(directory_.place(record, host), directory_.link(record).hash, depth(record));
  }
  /// A record that is in the order becomes its newest.
  void touch(record_id record) noexcept {
    if (in_host_memory(record) && places_.ranked(directory_.place(record, host))) {
      unrank(record);
      rank(record);
    }
  }

  /// Notes that slower tiers should get a record that they lack; while it is in host memory, it can be written.
  void owe(record_id record) noexcept {
    auto& here = at(record);
    if (!in_host_memory(record) || directory_.is_withdrawn(record)) {
      return;
    }
    num_waiting_ -= waits(here);
    slower_.for_each([&](std::size_t number, auto& tier) {
      if (directory_.place(record, number) < 0 && !is_due(record, number)) {
        here.due = static_cast<std::uint8_t>(here.due | bit_of(number));
        ++tier.counts.handed_over;
        ++tier.counts.num_owed;
      }
    });
    num_waiting_ += waits(here);
  }
  [[nodiscard]] bool is_due(record_id record, std::size_t number) const noexcept {
    return (at(record).due & bit_of(number)) != 0;
  }
  /// A record is held while it is written, and all that is to be erased of it is erased afterwards.
  void begin_write(record_id record) noexcept {
    hold(record);
    num_waiting_ -= waits(at(record));
    at(record).writing = true;
  }
  void end_write(record_id record) noexcept {
    at(record).writing = false;
    num_waiting_ += waits(at(record));
    num_stale_writes_ -= directory_.is_withdrawn(record) ? 1 : 0;
    let_go(record);
  }
  /// Records that are owed.
  [[nodiscard]] std::size_t num_waiting() const noexcept { return static_cast<std::size_t>(num_waiting_); }
  [[nodiscard]] bool is_owed(record_id record) const noexcept {
    return waits(at(record)) != 0 && !directory_.is_withdrawn(record);
  }
  /// A record that is owed, of a chain the first, or `no_record`, also when a short search does not find one.
  [[nodiscard]] record_id find_owed() noexcept {
    auto found = num_waiting_ == 0 ? no_record : places_.find([&](record_id record) { return is_owed(record); });
    if (found == no_record) {
      return found;
    }
    const auto index = directory_.index_of(found);
    const auto& tree = directory_.tree();
    for (auto above = tree.parent(directory_.node_of(found)); above != no_node; above = tree.parent(above)) {
      if (!is_owed(directory_.record_of(above, index))) {
        break;
      }
      found = directory_.record_of(above, index);
    }
    return found;
  }

  // Slower tiers: each as `slower()` gives it, with its number.

  /// A place, or −1.
  template <class Tier>
  [[nodiscard]] std::int32_t take_place(record_id record, std::size_t number, Tier& tier) noexcept {
    if (tier.places.is_full()) {
      tier.orphans.take_any([&](const found_record& found) { tier.places.give_back(found.place); });
    }
    return tier.places.take(record, victim_of(number), eviction_from(number, tier));
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
  void enter(record_id record, std::size_t number, std::int32_t place, Tier& tier) noexcept {
    directory_.set_place(record, number, place);
    at(record).due = static_cast<std::uint8_t>(at(record).due & ~bit_of(number));
    --tier.counts.num_owed;
    ++tier.counts.written;
    ++tier.counts.num_records;
    ++num_slower_records_;
    tier.places.note_written(place);
    tier.places.rank(place, directory_.link(record).hash, depth(record));
  }
  /// Room for the adoption of so many records. Throws `std::bad_alloc`.
  void reserve_adoptions(std::size_t num_nodes) { adopted_.reserve(num_nodes); }
  /// Enters the records from before that continue a chain with this end and this key, and those behind them:
  /// `adopted(record, number)` for each, with its tier's number; `rank_in` follows.
  template <class Adopted>
  void adopt_behind(link_type before, record_key key, salt tag, const Adopted& adopted) noexcept {
    for (;;) {
      slower_.for_each([&](std::size_t number, auto& tier) {
        tier.orphans.take_behind(key, [&](const found_record& found) {
          if (const auto record = adopt(found, before, tag, number, tier); record != no_record) {
            adopted(record, number);
          }
        });
      });
      if (adopted_.empty()) {
        return;
      }
      before = directory_.tree().link(adopted_.back());
      key = directory_.key(adopted_.back());
      adopted_.pop_back();
    }
  }
  template <class Tier>
  void rank_in(record_id record, std::size_t number, Tier& tier) noexcept {
    tier.places.rank(directory_.place(record, number), directory_.link(record).hash, depth(record));
  }
  void rank_in(record_id record, std::size_t number) noexcept {
    slower_.for_each([&](std::size_t each, auto& tier) {
      if (each == number) {
        rank_in(record, number, tier);
      }
    });
  }
  template <class Tier>
  void drop_record(record_id record, std::size_t number, Tier& tier) noexcept {
    const auto place = directory_.place(record, number);
    if (place < 0) {
      return;
    }
    clear(record, number, tier);
    tier.places.give_back(place);
  }
  /// Drops contents that nobody may find any more: erases them from the tier.
  template <class Tier>
  void erase_record(record_id record, std::size_t number, Tier& tier) noexcept {
    const auto place = directory_.place(record, number);
    if (place < 0) {
      return;
    }
    clear(record, number, tier);
    erase_place(directory_.key_in_tiers(record), place, tier);
  }
  /// Has a place erased that no record has any more; it is free afterwards.
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

  /// The fastest tier that has a record; one without places for a record that it may have, unless it may still have
  /// contents that are to be erased. 0 for none.
  [[nodiscard]] std::size_t source_of(record_id record) noexcept {
    auto found = std::size_t{0};
    slower_.for_each([&](std::size_t number, auto&) {
      if (found == 0 && directory_.place(record, number) >= 0) {
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
  void check_invariants(std::size_t num_held, std::size_t num_loading, const Broken& broken) const {
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
    for_each_possible([&](record_id record) {
      const auto& here = at(record);
      num_holders += here.num_holders;
      num_read += here.loading;
      num_waiting += waits(here);
      require(!here.pending, "tiers: a block waits to be copied after an operation");
      require(here.due == 0 || in_host_memory(record), "tiers: a record is owed that host memory has given up");
      num_stale_writes += directory_.is_withdrawn(record) && here.writing;
      if (const auto place = directory_.place(record, host); place >= 0) {
        ++num_records;
        require(places_.owner(place) == record, "tiers: the owner of a place is another record");
        require(places_.ranked(place) != directory_.on_device(record),
                "tiers: a record is in the order and on the device");
        require(!exclusive_ || !directory_.on_device(record) || here.due != 0 || here.num_holders != 0,
                "tiers: an exclusive record is on the device");
      }
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
    require(num_holders == num_held, "tiers: a record is held without a reason");
    slower_.for_each([&](std::size_t number, auto& tier) {
      const auto& s = tier.counts;
      auto num_there = std::int64_t{0};
      auto num_due = std::int64_t{0};
      for_each_possible([&](record_id record) {
        num_there += directory_.place(record, number) >= 0;
        num_due += is_due(record, number);
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
  static constexpr auto max_forgotten = 16;  // for the room of one record

  [[nodiscard]] static std::int64_t count_records(std::int32_t num_records, slower_tiers<Slower...>& slower) {
    auto sum = std::int64_t{num_records};
    slower.for_each([&](std::size_t, auto& tier) { sum += tier.places.num_places(); });
    return sum;
  }

  [[nodiscard]] std::uint32_t depth(record_id record) const noexcept {
    return directory_.tree().depth(directory_.node_of(record));
  }
  template <class Visit>
  void visit_records(node_id node, Visit&& visit) const noexcept(noexcept(visit(no_record))) {
    for (std::size_t index = 0; index < directory_.records_per_node(); ++index) {
      visit(directory_.record_of(node, index));
    }
  }
  /// Drops the records of a withdrawn node, but for those that are held.
  void forget(node_id node) noexcept {
    visit_records(node, [&](record_id record) {
      if (at(record).num_holders == 0) {
        drop_from_all(record);
      } else if (in_host_memory(record) && !directory_.on_device(record)) {
        rank(record);
      }
    });
    directory_.prune(node);
  }

  void remove_host_record(record_id record) noexcept {
    const auto place = directory_.place(record, host);
    lose_due(record);
    directory_.clear_place(record, host);
    places_.give_back(place);
    --counts_.num_records;
  }
  void drop_host_record(record_id record) noexcept {
    remove_host_record(record);
    ++counts_.dropped;
  }
  void drop_from_all(record_id record) noexcept {
    if (in_host_memory(record)) {
      drop_host_record(record);
    }
    slower_.for_each([&](std::size_t number, auto& tier) { erase_record(record, number, tier); });
  }
  template <class Tier>
  void clear(record_id record, std::size_t number, Tier& tier) noexcept {
    directory_.clear_place(record, number);
    --tier.counts.num_records;
    --num_slower_records_;
    ++tier.counts.dropped;
  }

  [[nodiscard]] static constexpr unsigned bit_of(std::size_t number) noexcept { return 1U << (number - 1); }
  /// 1 if the record is to be written to a slower tier, and no write of it is under way.
  [[nodiscard]] static std::int64_t waits(const record_facts& record) noexcept {
    return record.due != 0 && !record.writing;
  }
  /// Host memory gives up a record: tiers that have not got it never will.
  void lose_due(record_id record) noexcept {
    auto& here = at(record);
    num_waiting_ -= waits(here);
    slower_.for_each([&](std::size_t number, auto& tier) {
      const auto lost = is_due(record, number) ? 1 : 0;
      tier.counts.num_owed -= lost;
      tier.counts.lost_writes += lost;
    });
    here.due = 0;
  }

  template <class Tier>
  [[nodiscard]] auto erasure_from(Tier& tier) noexcept {
    return [this, &tier](const found_record& found) { erase_place(key_in_tier(found.identity), found.place, tier); };
  }
  /// The last node of a record's tokens behind `before`; `no_node` without room for them.
  [[nodiscard]] node_id add_nodes(const found_record& found, link_type before, salt tag) noexcept {
    const auto first = before.node;
    auto is_complete = true;
    for_each_run(found.contents(), found.identity.position, directory_.tokens_per_node(),
                 [&](const block_contents& run) {
                   const auto hash = directory_type::hash(before.hash, run);
                   const auto node = is_complete ? directory_.find_or_add(before, hash, run, tag) : no_node;
                   is_complete = node != no_node;
                   before = is_complete ? directory_.tree().link(node) : before;
                 });
    if (!is_complete && before.node != first) {
      directory_.prune(before.node);
    }
    return is_complete ? before.node : no_node;
  }
  /// Enters a record that continues a chain; `no_record` for one that no look-up could use, which is erased.
  template <class Tier>
  [[nodiscard]] record_id adopt(const found_record& found, const link_type& before, salt tag, std::size_t number,
                                Tier& tier) noexcept {
    const auto size = static_cast<std::int64_t>(directory_.tokens_per_node());
    const auto position = before.node == no_node ? 0 : (directory_.tree().depth(before.node) + std::int64_t{1}) * size;
    const auto follows = found.identity.salt == tag && found.identity.position == position &&
                         directory_.may_hold(found.identity.index, position, found.tokens.size());
    const auto node = follows ? add_nodes(found, before, tag) : no_node;
    const auto record =
        node == no_node ? no_record : directory_.record_of(node, static_cast<std::size_t>(found.identity.index));
    if (record == no_record || directory_.place(record, number) >= 0) {
      erase_place(key_in_tier(found.identity), found.place, tier);
      return no_record;
    }
    tier.places.assign(found.place, record);
    directory_.set_place(record, number, found.place);
    for (auto added = node; added != before.node && adopted_.size() < adopted_.capacity();
         added = directory_.tree().parent(added)) {
      adopted_.push_back(added);
    }
    ++tier.counts.adopted;
    ++tier.counts.num_records;
    ++num_slower_records_;
    return record;
  }

  void forget_oldest() noexcept {
    static_cast<void>(places_.evict(host_victim(), host_eviction()));
    slower_.for_each([&](std::size_t number, auto& tier) {
      static_cast<void>(tier.places.evict(victim_of(number), eviction_from(number, tier)));
    });
  }

  /// Whether a record may make room in a tier.
  [[nodiscard]] eviction_answer may_go(record_id record, std::size_t number, bool anyway) const noexcept {
    if (at(record).num_holders != 0) {
      return eviction_answer::fenced;
    }
    return !anyway && directory_.has_children(record, number) ? eviction_answer::has_children : eviction_answer::taken;
  }
  /// Not that of a record which is being read or written.
  [[nodiscard]] auto victim_of(std::size_t number) noexcept {
    return [this, number](record_id record, bool anyway) {
      return directory_.place(record, number) >= 0 ? may_go(record, number, anyway) : eviction_answer::fenced;
    };
  }
  [[nodiscard]] auto host_victim() noexcept { return victim_of(host); }
  [[nodiscard]] auto host_eviction() noexcept {
    return [this](record_id gone, std::int32_t) {
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
    return [this, number, &tier](record_id gone, std::int32_t) {
      directory_.clear_place(gone, number);
      --tier.counts.num_records;
      --num_slower_records_;
      ++tier.counts.evictions;
      directory_.prune(directory_.node_of(gone));
    };
  }
  /// A record that leaves host memory becomes the newest where else it is.
  void touch_slower([[maybe_unused]] record_id record) noexcept {
    slower_.for_each([&](std::size_t number, auto& tier) {
      if (const auto place = directory_.place(record, number); place >= 0) {
        tier.places.unrank(place);
        rank_in(record, number, tier);
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
  std::vector<node_id> adopted_;  // behind which others may follow
};

}  // namespace pagedkv
