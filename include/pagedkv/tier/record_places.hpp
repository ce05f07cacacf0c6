#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/function_ref.hpp>
#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/tier/record.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pagedkv {

/// The order in which the records of a tier make room: an eviction policy of any type, over places instead of blocks.
class record_order {
 public:
  using may_go = detail::function_ref<eviction_answer(block_id place, bool anyway)>;

  virtual ~record_order() = default;
  virtual void insert(block_id place, std::uint64_t hash, std::uint32_t depth) noexcept = 0;
  virtual void remove(block_id place) noexcept = 0;
  virtual void erase(block_id place) noexcept = 0;
  [[nodiscard]] virtual block_id victim(may_go answer) noexcept = 0;
  [[nodiscard]] virtual std::size_t metadata_bytes() const noexcept = 0;
};

/// Throws `std::bad_alloc`.
using record_order_factory = std::unique_ptr<record_order> (*)(std::int32_t num_places);

namespace detail {

template <eviction_policy Eviction>
class record_order_of final : public record_order {
 public:
  explicit record_order_of(std::int32_t num_places) : policy_(std::max(num_places, 1)) {}

  [[nodiscard]] static std::unique_ptr<record_order> make(std::int32_t num_places) {
    return std::make_unique<record_order_of>(num_places);
  }

  void insert(block_id place, std::uint64_t hash, std::uint32_t depth) noexcept override {
    policy_.insert(place, {.hash = hash, .depth = depth, .priority = 50});
  }
  void remove(block_id place) noexcept override { policy_.remove(place); }
  void erase(block_id place) noexcept override { policy_.erase(place); }
  block_id victim(may_go answer) noexcept override { return policy_.victim(offer{answer}, timestamp{}); }
  std::size_t metadata_bytes() const noexcept override { return policy_.metadata_bytes(); }

 private:
  struct offer {
    may_go answer;
    eviction_answer operator()(block_id place) const noexcept { return answer(place, false); }
    eviction_answer operator()(block_id place, evict_anyway_t) const noexcept { return answer(place, true); }
  };

  Eviction policy_;
};

}  // namespace detail

/// The numbered places of one tier: which record lies in each, and which record goes first when none is free.
/// A record is in the order while it is *ranked*. Not thread-safe; only the constructor allocates.
class record_places {
 public:
  using may_go = record_order::may_go;
  using gone = detail::function_ref<void(record_id record)>;

  /// Throws `std::bad_alloc`.
  record_places(std::int32_t num_places, record_order_factory make_order)
      : order_(make_order(num_places)), places_(static_cast<std::size_t>(num_places)) {
    free_.reserve(places_.size());
    for (auto place = num_places; place > 0; --place) {
      free_.push_back(place - 1);
    }
  }

  [[nodiscard]] std::int32_t num_taken() const noexcept {
    return static_cast<std::int32_t>(places_.size() - free_.size());
  }
  [[nodiscard]] bool is_full() const noexcept { return free_.empty(); }
  [[nodiscard]] record_id owner(std::int32_t place) const noexcept { return at(place).owner; }
  [[nodiscard]] bool ranked(std::int32_t place) const noexcept { return at(place).ranked; }

  /// A place for a record, or −1. Where none is free, `answer(place, anyway)` answers for others as an eviction
  /// offer does (`anyway`: with `evict_anyway`), and the first that is `taken` goes: `note_gone(record)`.
  [[nodiscard]] std::int32_t take(record_id record, may_go answer, gone note_gone) noexcept {
    if (free_.empty() && !evict(answer, note_gone)) {
      return -1;
    }
    const auto place = free_.back();
    free_.pop_back();
    at(place).owner = record;
    return place;
  }

  /// Frees the place of one record in the same way; false when none may go.
  [[nodiscard]] bool evict(may_go answer, gone note_gone) noexcept {
    const auto place = victim(answer);
    if (place < 0) {
      return false;
    }
    const auto before = at(place).owner;
    at(place) = {};
    at(place).unsure = true;
    note_gone(before);
    free_.push_back(place);
    return true;
  }

  /// Takes the places that have records from before, for no record yet. `has_record`: of each place. Linear in the
  /// places.
  void take_all(const std::vector<bool>& has_record) noexcept {
    std::erase_if(free_, [&](std::int32_t place) { return has_record[static_cast<std::size_t>(place)]; });
  }
  /// Gives a place that was taken for no record to one.
  void assign(std::int32_t place, record_id record) noexcept { at(place).owner = record; }

  /// Ends the ownership of a place whose record is to be erased; it is free only when it is given back.
  void retire(std::int32_t place) noexcept {
    auto& there = at(place);
    if (there.tracked) {
      order_->erase(to_id(place));
    }
    there = {};
  }
  void give_back(std::int32_t place) noexcept {
    retire(place);
    at(place).unsure = true;
    free_.push_back(place);
  }
  void give_back_erased(std::int32_t place) noexcept { free_.push_back(place); }

  /// A record was written to a place, over all that was there.
  void note_written(std::int32_t place) noexcept { at(place).unsure = at(place).stale = false; }

  /// Retires the free places that may hold a record of an earlier owner, and calls `erase(place)` for each. Those that
  /// are taken for a record not yet written are `stale` until it is. Linear in the places.
  void retire_unsure(detail::function_ref<void(std::int32_t place)> erase) noexcept {
    std::erase_if(free_, [&](std::int32_t place) {
      const auto unsure = at(place).unsure;
      if (unsure) {
        at(place) = {};
        erase(place);
      }
      return unsure;
    });
    for (auto& there : places_) {
      there.stale = there.unsure;
    }
  }
  [[nodiscard]] bool stale(std::int32_t place) const noexcept { return at(place).stale; }

  /// Puts a record into the order, as the newest.
  void rank(std::int32_t place, std::uint64_t hash, std::uint32_t depth) noexcept {
    auto& there = at(place);
    if (!there.ranked) {
      there.ranked = there.tracked = true;
      order_->insert(to_id(place), hash, depth);
    }
  }
  /// Takes it out: the device has the contents, too.
  void unrank(std::int32_t place) noexcept {
    auto& there = at(place);
    if (there.ranked) {
      there.ranked = false;
      order_->remove(to_id(place));
    }
  }

  /// The next owner, in turn, for which `is_wanted(record)`; `no_record` when a short search finds none.
  [[nodiscard]] record_id find(detail::function_ref<bool(record_id record)> is_wanted) noexcept {
    for (auto tries = std::min(max_scanned, places_.size()); tries > 0; --tries) {
      hand_ = (hand_ + 1) % places_.size();
      if (const auto record = places_[hand_].owner; record != no_record && is_wanted(record)) {
        return record;
      }
    }
    return no_record;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return order_->metadata_bytes() + places_.capacity() * sizeof(place_facts) +
           free_.capacity() * sizeof(std::int32_t);
  }

 private:
  static constexpr auto max_scanned = std::size_t{64};  // records in one search out of order

  struct place_facts {
    record_id owner = no_record;
    bool ranked = false;
    bool tracked = false;  // by the order, since it was ranked first
    bool unsure = false;   // may hold a record that is no longer the owner's
    bool stale = false;    // and that record is invalid
  };

  [[nodiscard]] static block_id to_id(std::int32_t place) noexcept { return block_id{place}; }
  [[nodiscard]] place_facts& at(std::int32_t place) noexcept { return places_[static_cast<std::size_t>(place)]; }
  [[nodiscard]] const place_facts& at(std::int32_t place) const noexcept {
    return places_[static_cast<std::size_t>(place)];
  }

  /// A place in use whose record may go, with no trace of it in the order.
  [[nodiscard]] std::int32_t victim(may_go answer) noexcept {
    if (const auto found = order_->victim(answer); found != no_block) {
      return static_cast<std::int32_t>(found);
    }
    const auto is_victim = [&](record_id) { return answer(to_block(hand_), true) == eviction_answer::taken; };
    if (find(is_victim) == no_record) {
      return -1;
    }
    const auto place = static_cast<std::int32_t>(hand_);
    if (at(place).tracked) {
      order_->erase(to_id(place));
    }
    return place;
  }

  std::unique_ptr<record_order> order_;
  std::vector<place_facts> places_;
  std::vector<std::int32_t> free_;
  std::size_t hand_ = 0;
};

/// A record that a tier has from before.
struct found_record {
  std::int32_t place;
  record_identity identity;  // without contents
  std::vector<token> tokens;
  std::vector<prefix_key> keys;

  [[nodiscard]] block_contents contents() const noexcept { return {tokens, keys}; }
};

/// Records of one tier whose ancestors nobody knows, until these come, an invalidation may mean them, or their place is
/// needed. Not thread-safe; only `add` allocates.
class orphan_records {
 public:
  /// Throws `std::bad_alloc`.
  void add(found_record record) {
    auto& count = num_with_[record.identity.salt];
    const auto parent = record.identity.parent;
    num_bytes_ += bytes_of(record);
    num_tokens_ += record.tokens.size();
    behind_.emplace(parent, std::move(record));
    ++count;
  }

  [[nodiscard]] std::size_t size() const noexcept { return behind_.size(); }
  [[nodiscard]] bool empty() const noexcept { return behind_.empty(); }
  /// Tokens of all that were added.
  [[nodiscard]] std::size_t num_tokens() const noexcept { return num_tokens_; }

  /// Calls `visit(salt)` for the salt of each record, once for equal ones.
  template <class Visit>
  void for_each_salt(Visit&& visit) const {
    for (const auto& [salt, count] : num_with_) {
      visit(salt);
    }
  }

  /// Removes the records that continue a chain with this key, each after `taken(record)`.
  template <class Taken>
  void take_behind(const record_key& parent, Taken&& taken) noexcept {
    const auto [first, last] = behind_.equal_range(parent);
    for (auto each = first; each != last; ++each) {
      taken(std::as_const(each->second));
      uncount(each->second);
    }
    behind_.erase(first, last);
  }

  /// Takes those of a salt. Linear in the records, if there is one.
  template <class Taken>
  void take_with(salt salt, Taken&& taken) noexcept {
    if (!num_with_.contains(salt)) {
      return;
    }
    std::erase_if(behind_, [&](const auto& entry) {
      const auto goes = entry.second.identity.salt == salt;
      if (goes) {
        taken(entry.second);
        num_bytes_ -= bytes_of(entry.second);
      }
      return goes;
    });
    num_with_.erase(salt);
  }

  /// Takes one of them.
  template <class Taken>
  void take_any(Taken&& taken) noexcept {
    if (const auto first = behind_.begin(); first != behind_.end()) {
      taken(std::as_const(first->second));
      uncount(first->second);
      behind_.erase(first);
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return num_bytes_ + num_with_.size() * sizeof(std::pair<const salt, std::size_t>);
  }

 private:
  struct key_hash {
    std::size_t operator()(const record_key& key) const noexcept { return static_cast<std::size_t>(key.low); }
  };

  [[nodiscard]] static std::size_t bytes_of(const found_record& record) noexcept {
    return sizeof(record_key) + sizeof(record) + record.tokens.size() * sizeof(token) +
           record.keys.size() * sizeof(prefix_key);
  }
  void uncount(const found_record& record) noexcept {
    num_bytes_ -= bytes_of(record);
    if (const auto at = num_with_.find(record.identity.salt); --at->second == 0) {
      num_with_.erase(at);
    }
  }

  std::unordered_multimap<record_key, found_record, key_hash> behind_;  // by the key of the chain before
  std::unordered_map<salt, std::size_t> num_with_;
  std::size_t num_bytes_ = 0;
  std::size_t num_tokens_ = 0;
};

}  // namespace pagedkv
