#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_places.hpp>
#include <pagedkv/tier/record_table.hpp>
#include <pagedkv/tier/slower_tier.hpp>
#include <pagedkv/tier/tier_config.hpp>
#include <pagedkv/tier/tier_statistics.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv {

/// Knows which contents have a record in which tier, and which record makes room for another. Host memory is tier 0;
/// the slower tiers follow. It moves no bytes, but has the queues erase records that are invalid. One thread at a time;
/// only the constructor allocates, except for keys.
///
/// `Directory`: the model of the device's blocks, with the table of records: `block_directory` or `group_directory`.
/// `Queues`: `transfer_queues`, or `no_transfer_queues` where host memory is the only tier.
template <class Directory, class Queues>
class record_index : public Directory {
 public:
  using link_type = typename Directory::link_type;
  using queues_type = Queues;
  static constexpr auto host = std::size_t{0};
  static constexpr bool has_slower = Queues::has_slower;
  static constexpr auto max_tiers = std::size_t{9};

  using Directory::at;
  using Directory::is_withdrawn;
  using Directory::node_of;
  using Directory::on_device;
  using Directory::place_of;
  using Directory::prune;
  using Directory::tree;

  /// Adopts the records that tiers have from before, as far as all their ancestors are in one of the tiers; the others
  /// wait for theirs. Throws `exception`, `std::bad_alloc`.
  template <class... OfDirectory>
  record_index(const tier_config& config, std::span<const tier_shape> shapes, Queues& queues,
               OfDirectory&&... of_directory)
      : Directory(std::forward<OfDirectory>(of_directory)...),
        exclusive_(config.exclusive),
        asks_(config.ask_ahead != 0),
        queues_(queues) {
    assert(shapes.size() <= max_tiers && "as many as `record_facts::due` has bits");
    tiers_.reserve(shapes.size());
    for (const auto& [num_places, has_places, make_order] : shapes) {
      tiers_.push_back({record_places{static_cast<std::int32_t>(num_places), make_order}, has_places, {}, {}});
      tiers_.back().counts.num_places = has_places ? num_places : 0;
    }
    if constexpr (has_slower) {
      adopt_found();
    }
  }

  /// Host memory and the slower ones.
  [[nodiscard]] std::size_t num_tiers() const noexcept { return has_slower ? tiers_.size() : 1; }
  /// Counts of a tier.
  [[nodiscard]] tier_statistics& counts(std::size_t tier) noexcept { return tiers_[tier].counts; }
  [[nodiscard]] tier_statistics statistics(std::size_t tier) const noexcept {
    auto counts = tiers_[tier].counts;
    counts.num_erasing = queues_.num_erasing(tier);
    counts.num_orphans = static_cast<std::int64_t>(tiers_[tier].orphans.size());
    return counts;
  }
  /// Counts blocks that a sequence took from a tier, and tokens that it need not compute for that.
  void count_taken(std::int8_t tier, std::int64_t num_blocks, std::int64_t num_tokens) noexcept {
    auto& counts = tiers_[static_cast<std::size_t>(tier)].counts;
    counts.hit_blocks += num_blocks;
    counts.hit_tokens += num_tokens;
  }

  /// Whether there are records from before whose ancestors are missing.
  [[nodiscard]] bool has_orphans() const noexcept {
    return has_slower && std::ranges::any_of(tiers_, [](const tier_state& tier) { return !tier.orphans.empty(); });
  }
  [[nodiscard]] bool has_records() const noexcept {
    return std::ranges::any_of(tiers_, [](const tier_state& tier) { return tier.counts.num_records != 0; });
  }
  [[nodiscard]] bool in_host_memory(record_id record) const noexcept { return place_of(record, host) >= 0; }
  /// Whether a look-up may use a record: its K/V is in a tier, or on its way.
  [[nodiscard]] bool is_reachable(record_id record) const noexcept {
    return Directory::has_record(record) || at(record).loading;
  }
  /// Whether a load that began earlier can be taken: contents that were invalidated since then are not served.
  [[nodiscard]] bool is_ready(record_id record) const noexcept {
    return in_host_memory(record) && !is_withdrawn(record);
  }
  [[nodiscard]] bool is_awaited(record_id record) const noexcept { return at(record).loading && !is_withdrawn(record); }
  /// The fastest slower tier that has a record; one without places for a record that it may have, unless it may still
  /// have contents that are to be erased. 0 for none.
  [[nodiscard]] std::size_t source_of(record_id record) const noexcept {
    for (auto tier = host + 1; tier < num_tiers(); ++tier) {
      if (place_of(record, tier) >= 0) {
        return tier;
      }
    }
    for (auto tier = host + 1; tier < num_tiers(); ++tier) {
      if (!tiers_[tier].has_places && asks_ && num_stale_writes_ == 0 && queues_.num_erasing(tier) == 0) {
        return tier;
      }
    }
    return 0;
  }

  // Nodes.

  /// Does what the directory's does, but makes room where there is none: records that faults left without their
  /// ancestors' keep more nodes than records. The node before is in use.
  [[nodiscard]] node_id find_or_add(const link_type& before, std::uint64_t hash, const block_contents& contents,
                                    salt salt) noexcept {
    make_room_for_nodes();
    const auto node = Directory::find_or_add(before, hash, contents, salt);
    if (node != no_node) {
      adopt_orphans(node);
    }
    return node;
  }
  /// Removes old records until a node can be added.
  [[gnu::always_inline]] void make_room_for_nodes() noexcept {
    if (tree().is_full()) [[unlikely]] {
      forget_for_nodes();
    }
  }
  void forget_for_nodes() noexcept {
    for (auto tries = 0; tree().is_full() && tries < max_forgotten; ++tries) {
      for (auto tier = host; tier < num_tiers(); ++tier) {
        static_cast<void>(tiers_[tier].places.evict(victim_of(tier), eviction_from(tier)));
      }
    }
  }
  /// Adopts the records from before that continue a node.
  void adopt_orphans([[maybe_unused]] node_id node) noexcept {
    if constexpr (has_slower) {
      if (has_orphans()) {
        adopt_behind(tree().link(node), Directory::key(node), Directory::salt_of(node),
                     [this](record_id adopted, std::size_t tier) { rank(adopted, tier); });
      }
    }
  }

  void let_go(record_id record) noexcept {
    Directory::let_go(record);
    tidy(record);
  }
  /// Drops a record that nothing needs any more, and then its node.
  [[gnu::always_inline]] void tidy(record_id record) noexcept {
    if (at(record).num_holders == 0 &&
        (exclusive_ || is_withdrawn(record) || tree().num_holders(node_of(record)) == 0)) {
      tidy_unheld(record);
    }
  }

  // Invalidations.

  /// Withdraws a node with all that continues it. Its records, and theirs, stay until `end_invalidation`.
  void withdraw(node_id top) noexcept {
    if (!tree().is_withdrawn(top)) {
      forget_orphans(Directory::salt_of(top));
      tree().for_each_below(top, [&](node_id node) {
        if (tree().withdraw(node)) {
          note_withdrawn(node);
        }
      });
    }
  }
  /// The nodes' owner has withdrawn some of them. Linear in the nodes.
  void note_withdrawals() noexcept {
    num_stale_writes_ = 0;
    tree().for_each([&](node_id node) {
      if (tree().is_withdrawn(node)) {
        forget_orphans(Directory::salt_of(node));
        note_withdrawn(node);
      }
    });
  }
  void forget_all() noexcept {
    tree().for_each([&](node_id node) { withdraw(node); });
    for (auto tier = host + 1; tier < num_tiers(); ++tier) {
      while (!tiers_[tier].orphans.empty()) {
        tiers_[tier].orphans.take_any(erasure_from(tier));
      }
    }
    end_invalidation();
  }
  /// Has those of a salt erased: nothing tells which of them continue the chains that an invalidation means.
  void forget_orphans(salt salt) noexcept {
    for (auto tier = host + 1; tier < num_tiers(); ++tier) {
      tiers_[tier].orphans.take_with(salt, erasure_from(tier));
    }
  }
  /// Forgets the nodes withdrawn since the last call, and erases their records from slower tiers, with those that
  /// places still hold although they left the index. Linear in the nodes and places.
  void end_invalidation() noexcept {
    if (std::exchange(withdrew_, false)) {
      tree().for_each([&](node_id node) {
        if (tree().is_withdrawn(node)) {
          forget(node);
        }
      });
    }
    for (auto tier = host + 1; tier < num_tiers(); ++tier) {
      if (tiers_[tier].has_places) {
        tiers_[tier].places.retire_unsure([&](std::int32_t place) { queues_.erase(tier, {}, place); });
      }
    }
  }

  // Places.

  /// A place in a tier, or −1. Reads and writes of device memory that use one of host memory are to be ordered after
  /// all batches of copies before.
  [[nodiscard]] std::int32_t take_place(record_id record, std::size_t tier) noexcept {
    auto& places = tiers_[tier].places;
    if (tier != host && places.is_full()) {
      tiers_[tier].orphans.take_any([&](const found_record& found) { places.give_back(found.place); });
    }
    return places.take(record, victim_of(tier), eviction_from(tier));
  }
  /// Takes back a place that has got no record.
  void give_back_place(std::int32_t place, std::size_t tier) noexcept {
    if (tiers_[tier].has_places && tiers_[tier].places.stale(place)) {
      erase_place({}, place, tier);
    } else {
      tiers_[tier].places.give_back(place);
    }
  }
  /// Takes back the place of a record of which a write failed, although it may have arrived: if the record has been
  /// withdrawn meanwhile, it is erased there.
  void give_back_unwritten(record_id record, std::int32_t place, std::size_t tier) noexcept {
    if (is_withdrawn(record)) {
      erase_place(Directory::key_in_tiers(record), place, tier);
    } else {
      give_back_place(place, tier);
    }
  }
  void enter_host_memory(record_id record, std::int32_t place) noexcept {
    Directory::set_place(record, host, place);
    at(record).sealed = false;
    at(record).source = 0;
    ++tiers_[host].counts.num_records;
    if (!on_device(record)) {
      rank(record);
    }
  }
  /// A record that was due has been written to a slower tier.
  void enter(record_id record, std::size_t tier, std::int32_t place) noexcept {
    Directory::set_place(record, tier, place);
    at(record).due = static_cast<std::uint8_t>(at(record).due & ~bit_of(tier));
    --tiers_[tier].counts.num_owed;
    ++tiers_[tier].counts.written;
    ++tiers_[tier].counts.num_records;
    tiers_[tier].places.note_written(place);
    rank(record, tier);
  }
  /// Counts a record for which there is no room.
  void lose_unwritten() noexcept {
    ++tiers_[host].counts.handed_over;
    ++tiers_[host].counts.lost_writes;
  }
  /// Takes a record back whose copy failed.
  void lose_host_record(record_id record) noexcept {
    give_back_place(remove(record, host), host);
    ++tiers_[host].counts.lost_writes;
  }
  /// Drops a record from a tier, if it is there.
  void drop(record_id record, std::size_t tier) noexcept {
    if (const auto from = remove(record, tier); from >= 0) {
      ++tiers_[tier].counts.dropped;
      tiers_[tier].places.give_back(from);
    }
  }
  /// The device has the contents of a record in host memory, too.
  void unrank(record_id record) noexcept { tiers_[host].places.unrank(place_of(record, host)); }
  void rank(record_id record, std::size_t tier = host) noexcept {
    const auto from = node_of(record);
    tiers_[tier].places.rank(place_of(record, tier), tree().link(from).hash, tree().depth(from));
  }
  /// A record of host memory that is in the order becomes its newest.
  void touch(record_id record) noexcept {
    if (in_host_memory(record) && tiers_[host].places.ranked(place_of(record, host))) {
      unrank(record);
      rank(record);
    }
  }

  // Erasures.

  /// Erases contents from tiers without places, which may have them although this index does not know.
  void erase_unknown(const record_key& key) noexcept {
    for (auto tier = host + 1; tier < num_tiers(); ++tier) {
      if (!tiers_[tier].has_places) {
        queues_.erase(tier, key, 0);
      }
    }
  }
  /// A record that was to be erased from this place is gone.
  void note_erased(std::int32_t place, std::size_t tier) noexcept {
    if (tiers_[tier].has_places) {
      tiers_[tier].places.give_back_erased(place);
    }
  }

  // Records that slower tiers should get.

  /// Notes that slower tiers should get a record that they lack; while it is in host memory, it can be written.
  void owe(record_id record) noexcept {
    auto& here = at(record);
    if (!is_ready(record)) {
      return;
    }
    num_waiting_ -= waits(here);
    for (auto tier = host + 1; tier < num_tiers(); ++tier) {
      if (place_of(record, tier) < 0 && !is_due(record, tier)) {
        here.due = static_cast<std::uint8_t>(here.due | bit_of(tier));
        ++tiers_[tier].counts.handed_over;
        ++tiers_[tier].counts.num_owed;
      }
    }
    num_waiting_ += waits(here);
  }
  [[nodiscard]] bool is_due(record_id record, std::size_t tier) const noexcept {
    return (at(record).due & bit_of(tier)) != 0;
  }
  /// A record is held while it is written. If it is withdrawn meanwhile, what was written is erased afterwards.
  void begin_write(record_id record) noexcept {
    Directory::hold(record);
    num_waiting_ -= waits(at(record));
    at(record).writing = true;
  }
  void end_write(record_id record) noexcept {
    at(record).writing = false;
    num_waiting_ += waits(at(record));
    if (is_withdrawn(record)) {
      --num_stale_writes_;
      erase_from_slower(record);
    }
    let_go(record);
  }
  /// Records that are owed.
  [[nodiscard]] std::size_t num_waiting() const noexcept { return static_cast<std::size_t>(num_waiting_); }
  [[nodiscard]] bool is_owed(record_id record) const noexcept {
    return waits(at(record)) != 0 && !is_withdrawn(record);
  }
  /// A record that is owed, of a chain the first, or `no_record`, also when a short search does not find one.
  [[nodiscard]] record_id find_owed() noexcept {
    auto found =
        num_waiting_ == 0 ? no_record : tiers_[host].places.find([&](record_id record) { return is_owed(record); });
    if (found == no_record) {
      return found;
    }
    const auto index = Directory::index_of(found);
    for (auto above = tree().parent(node_of(found)); above != no_node; above = tree().parent(above)) {
      if (!is_owed(Directory::record_of(above, index))) {
        break;
      }
      found = Directory::record_of(above, index);
    }
    return found;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    auto bytes = Directory::metadata_bytes() + adopted_.capacity() * sizeof(node_id);
    for (auto tier = host; tier < num_tiers(); ++tier) {
      bytes += tiers_[tier].orphans.metadata_bytes() + tiers_[tier].places.metadata_bytes();
    }
    return bytes;
  }

  /// Calls `broken(sentence)` for each broken invariant; may throw `std::bad_alloc`. `num_held`: records that are held,
  /// each once for each holder; `num_loading`: records that are being read.
  template <class Broken>
  void check_invariants(std::size_t num_held, std::size_t num_loading, const Broken& broken) const {
    const auto require = [&](bool holds, const char* sentence) {
      if (!holds) {
        broken(sentence);
      }
    };
    auto num_holders = std::size_t{0};
    auto num_read = std::size_t{0};
    auto num_waiting = std::int64_t{0};
    auto num_stale_writes = std::int64_t{0};
    auto found = std::vector<tier_statistics>(num_tiers());
    const auto& memory = tiers_[host].places;
    const auto check_record = [&](record_id record) {
      const auto& here = at(record);
      num_holders += here.num_holders;
      num_read += here.loading;
      num_waiting += waits(here);
      num_stale_writes += is_withdrawn(record) && here.writing;
      for (auto tier = host; tier < num_tiers(); ++tier) {
        found[tier].num_records += place_of(record, tier) >= 0;
        found[tier].num_owed += tier != host && is_due(record, tier);
      }
      require(!here.pending, "tiers: a block waits to be copied after an operation");
      require(here.due == 0 || in_host_memory(record), "tiers: a record is owed that host memory has given up");
      if (const auto there = place_of(record, host); there >= 0) {
        require(memory.owner(there) == record, "tiers: the owner of a place is another record");
        require(memory.ranked(there) != on_device(record), "tiers: a record is in the order and on the device");
        require(!exclusive_ || !on_device(record) || here.due != 0 || here.num_holders != 0,
                "tiers: an exclusive record is on the device");
      }
    };
    tree().for_each([&](node_id node) { visit_records(node, check_record); });
    require(num_waiting == num_waiting_, "tiers: writes that are owed do not add up");
    require(num_stale_writes == num_stale_writes_, "tiers: writes of invalidated records do not add up");
    require(num_read == num_loading, "tiers: loads under way do not add up");
    require(num_holders == num_held, "tiers: a record is held without a reason");
    for (auto tier = host; tier < num_tiers(); ++tier) {
      const auto& c = tiers_[tier].counts;
      const auto num_taken = std::int64_t{tiers_[tier].places.num_taken()};
      const auto num_reserved = static_cast<std::int64_t>(tier == host ? num_loading : tiers_[tier].orphans.size());
      require(found[tier].num_records == c.num_records, "tiers: a tier counts other records than there are");
      require(found[tier].num_owed == c.num_owed, "tiers: a tier counts other records as owed than there are");
      require(c.handed_over == c.written + c.lost_writes + c.num_owed, "tiers: writes to a tier do not add up");
      require(c.written + c.adopted + c.loaded_into == c.num_records + c.evictions + c.dropped,
              "tiers: counts of a tier do not add up");
      require(num_taken >= c.num_records + num_reserved, "tiers: a place with a record is free");
      require(tier != host || num_taken == c.num_records + num_reserved, "tiers: a place of host memory is lost");
    }
  }

 private:
  struct tier_state {
    record_places places;
    bool has_places;
    orphan_records orphans;  // none in host memory
    tier_statistics counts;
  };
  static constexpr auto max_forgotten = 16;  // for the room of one record

  template <class Visit>
  void visit_records(node_id node, const Visit& visit) const {
    for (std::size_t index = 0; index < Directory::records_per_node(); ++index) {
      visit(Directory::record_of(node, index));
    }
  }

  /// Drops a record that nobody holds, if it is withdrawn, or is not to be beside the device's.
  [[gnu::noinline]] void tidy_unheld(record_id record) noexcept {
    if (is_withdrawn(record)) {
      drop_from_all(record);
    } else if (exclusive_ && on_device(record) && at(record).due == 0 && in_host_memory(record)) {
      drop(record, host);
    }
    prune(node_of(record));
  }

  /// A node has been withdrawn.
  void note_withdrawn(node_id node) noexcept {
    visit_records(node, [&](record_id record) { num_stale_writes_ += at(record).writing ? 1 : 0; });
    withdrew_ = true;
  }
  /// Drops the records of a withdrawn node; those that are held stay in host memory until they are let go.
  void forget(node_id node) noexcept {
    visit_records(node, [&](record_id record) {
      if (at(record).num_holders == 0) {
        drop_from_all(record);
      } else {
        erase_owed(record);
        erase_from_slower(record);
        if (in_host_memory(record) && !on_device(record)) {
          rank(record);
        }
      }
    });
    prune(node);
  }

  /// Takes a record out of a tier. Returns its place, which is still taken, or −1 if it is not there.
  [[nodiscard]] [[gnu::always_inline]] std::int32_t remove(record_id record, std::size_t tier) noexcept {
    const auto from = place_of(record, tier);
    if (from >= 0) {
      if (tier == host) {
        lose_due(record);
      }
      Directory::clear_place(record, tier);
      --tiers_[tier].counts.num_records;
    }
    return from;
  }
  /// Drops contents that nobody may find any more.
  void drop_from_all(record_id record) noexcept {
    erase_owed(record);
    drop(record, host);
    erase_from_slower(record);
  }
  void erase_from_slower(record_id record) noexcept {
    for (auto tier = host + 1; tier < num_tiers(); ++tier) {
      if (const auto from = remove(record, tier); from >= 0) {
        ++tiers_[tier].counts.dropped;
        erase_place(Directory::key_in_tiers(record), from, tier);
      }
    }
  }
  /// Erases what a failed write of an owed record may have left in a tier without places.
  void erase_owed(record_id record) noexcept {
    for (auto tier = host + 1; at(record).due != 0 && tier < num_tiers(); ++tier) {
      if (!tiers_[tier].has_places && is_due(record, tier)) {
        queues_.erase(tier, Directory::key_in_tiers(record), 0);
      }
    }
  }
  /// Has a place erased that no record has any more; it is free afterwards.
  void erase_place(const record_key& key, std::int32_t place, std::size_t tier) noexcept {
    tiers_[tier].has_places ? tiers_[tier].places.retire(place) : tiers_[tier].places.give_back(place);
    queues_.erase(tier, key, place);
  }
  [[nodiscard]] auto erasure_from(std::size_t tier) noexcept {
    return [this, tier](const found_record& found) { erase_place(key_in_tier(found.identity), found.place, tier); };
  }

  /// The bit of a slower tier.
  [[nodiscard]] static constexpr unsigned bit_of(std::size_t tier) noexcept { return 1U << (tier - 1); }
  /// 1 if the record is to be written to a slower tier, and no write of it is under way.
  [[nodiscard]] static std::int64_t waits(const record_facts& record) noexcept {
    return record.due != 0 && !record.writing;
  }
  /// Host memory gives up a record: tiers that have not got it never will.
  void lose_due(record_id record) noexcept {
    auto& here = at(record);
    num_waiting_ -= waits(here);
    for (auto tier = host + 1; tier < num_tiers(); ++tier) {
      const auto lost = is_due(record, tier) ? 1 : 0;
      tiers_[tier].counts.num_owed -= lost;
      tiers_[tier].counts.lost_writes += lost;
    }
    here.due = 0;
  }

  /// Answers whether a record may make room in a tier: not one that is held, as those that are read or written are.
  [[nodiscard]] auto victim_of(std::size_t tier) const noexcept {
    return [this, tier](block_id place, bool anyway) {
      const auto record = tiers_[tier].places.owner(static_cast<std::int32_t>(place));
      if (place_of(record, tier) < 0 || at(record).num_holders != 0) {
        return eviction_answer::fenced;
      }
      return !anyway && Directory::has_children(record, tier) ? eviction_answer::has_children : eviction_answer::taken;
    };
  }
  /// A record that leaves host memory becomes the newest where else it is.
  [[nodiscard]] auto eviction_from(std::size_t tier) noexcept {
    return [this, tier](record_id gone) {
      // Those before it in its chain go next, mostly.
      const auto above = tree().parent(node_of(gone));
      if (const auto next = above != no_node ? tree().parent(above) : no_node; next != no_node) {
        Directory::prefetch_removal(Directory::record_of(next, Directory::index_of(gone)));
      }
      static_cast<void>(remove(gone, tier));
      ++tiers_[tier].counts.evictions;
      for (auto other = host + 1; tier == host && other < num_tiers(); ++other) {
        if (const auto there = place_of(gone, other); there >= 0) {
          tiers_[other].places.unrank(there);
          rank(gone, other);
        }
      }
      tidy(gone);
    };
  }

  // Records that tiers have from before.

  void adopt_found() {
    auto tags = std::vector<salt>{};
    auto num_found = std::size_t{0};
    auto num_nodes = std::size_t{0};
    for (auto tier = host + 1; tier < num_tiers(); ++tier) {
      if (tiers_[tier].has_places) {
        find_records(tier);
      }
      num_found += tiers_[tier].orphans.size();
      num_nodes += tiers_[tier].orphans.num_tokens() / Directory::tokens_per_node();
      tiers_[tier].orphans.for_each_salt([&](salt salt) { tags.push_back(salt); });
    }
    adopted_.reserve(num_nodes);
    auto adopted = std::vector<std::pair<record_id, std::size_t>>{};
    adopted.reserve(num_found);
    for (const auto salt : tags) {
      adopt_behind(tree().root(salt), root_key(salt), salt,
                   [&](record_id record, std::size_t tier) { adopted.emplace_back(record, tier); });
    }
    for (auto i = adopted.size(); i > 0; --i) {  // tails first, as the oldest
      rank(adopted[i - 1].first, adopted[i - 1].second);
    }
  }
  /// Takes note of the records that a tier has; has those that no chain can reach erased.
  void find_records(std::size_t tier) {
    auto has_record = std::vector<bool>(static_cast<std::size_t>(tiers_[tier].counts.num_places));
    auto useless = std::vector<std::pair<record_key, std::int32_t>>{};
    queues_[tier].tier().for_each_record([&](std::int64_t in_tier, const record_identity& identity) {
      const auto there = static_cast<std::int32_t>(in_tier);
      if (in_tier >= tiers_[tier].counts.num_places) {
        return;
      }
      has_record[static_cast<std::size_t>(in_tier)] = true;
      const auto [tokens, keys] = identity.contents;
      auto found = found_record{there, identity, {tokens.begin(), tokens.end()}, {keys.begin(), keys.end()}};
      found.identity.contents = block_contents{std::span<const token>{}};
      auto key = identity.parent;
      for_each_run(found.contents(), identity.position, Directory::tokens_per_node(),
                   [&](const block_contents& run) { key = chained_key(key, run); });
      if (identity.key == key) {
        tiers_[tier].orphans.add(std::move(found));
      } else {
        useless.emplace_back(key_in_tier(identity), there);
      }
    });
    tiers_[tier].places.take_all(has_record);
    for (const auto& [key, there] : useless) {
      erase_place(key, there, tier);
    }
  }
  /// Enters the records from before that continue a chain with this end and this key, and those behind them:
  /// `adopted(record, tier)` for each; `rank` follows.
  template <class Adopted>
  void adopt_behind(link_type before, record_key key, salt salt, const Adopted& adopted) noexcept {
    for (;;) {
      for (auto tier = host + 1; tier < num_tiers(); ++tier) {
        tiers_[tier].orphans.take_behind(key, [&](const found_record& found) {
          if (const auto record = adopt(found, before, salt, tier); record != no_record) {
            adopted(record, tier);
          }
        });
      }
      if (adopted_.empty()) {
        return;
      }
      before = tree().link(adopted_.back());
      key = Directory::key(adopted_.back());
      adopted_.pop_back();
    }
  }
  /// Enters a record that continues a chain; `no_record` for one that no look-up could use, which is erased.
  [[nodiscard]] record_id adopt(const found_record& found, const link_type& before, salt salt,
                                std::size_t tier) noexcept {
    const auto size = static_cast<std::int64_t>(Directory::tokens_per_node());
    const auto position = before.node == no_node ? 0 : (tree().depth(before.node) + std::int64_t{1}) * size;
    const auto follows = found.identity.salt == salt && found.identity.position == position &&
                         Directory::may_hold(found.identity.index, position, found.tokens.size());
    const auto node = follows ? add_nodes(found, before, salt) : no_node;
    const auto record =
        node == no_node ? no_record : Directory::record_of(node, static_cast<std::size_t>(found.identity.index));
    if (record == no_record || place_of(record, tier) >= 0) {
      erase_place(key_in_tier(found.identity), found.place, tier);
      return no_record;
    }
    tiers_[tier].places.assign(found.place, record);
    Directory::set_place(record, tier, found.place);
    for (auto added = node; added != before.node && adopted_.size() < adopted_.capacity();
         added = tree().parent(added)) {
      adopted_.push_back(added);
    }
    ++tiers_[tier].counts.adopted;
    ++tiers_[tier].counts.num_records;
    return record;
  }
  /// The last node of a record's tokens behind `before`; `no_node` without room for them.
  [[nodiscard]] node_id add_nodes(const found_record& found, link_type before, salt salt) noexcept {
    const auto first = before.node;
    auto is_complete = true;
    for_each_run(found.contents(), found.identity.position, Directory::tokens_per_node(),
                 [&](const block_contents& run) {
                   const auto hash = Directory::hash(before.hash, run);
                   const auto node = is_complete ? Directory::find_or_add(before, hash, run, salt) : no_node;
                   is_complete = node != no_node;
                   before = is_complete ? tree().link(node) : before;
                 });
    if (!is_complete && before.node != first) {
      prune(before.node);
    }
    return is_complete ? before.node : no_node;
  }

  bool exclusive_;
  bool asks_;
  bool withdrew_ = false;  // since the last `end_invalidation`
  Queues& queues_;
  std::vector<tier_state> tiers_;
  std::int64_t num_waiting_ = 0;       // owed records of which no write is under way
  std::int64_t num_stale_writes_ = 0;  // of nodes that were withdrawn meanwhile
  std::vector<node_id> adopted_;       // behind which others may follow
};

}  // namespace pagedkv
