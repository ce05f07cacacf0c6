#pragma once

#include <pagedkv/policy/eviction/lru.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace pagedkv::testing {

struct plain_data {
  [[nodiscard]] int read() const { return value; }
  void write(int next) { value = next; }

  int value = 0;
};

/// `lru`, which counts what it lists and how often it is not called as its concept says. Both counts are of all that
/// were made since `reset`. `Data` reports calls by two threads at once: plain to ThreadSanitizer, `scheduled_data` to
/// the scheduler.
template <class Data = plain_data>
class audited_lru {
 public:
  static constexpr std::string_view name = "audited_lru";
  static constexpr bool concurrent = false;

  explicit audited_lru(std::int32_t num_blocks)
      : order_(num_blocks),
        tracked_(static_cast<std::size_t>(num_blocks)),
        evictable_(static_cast<std::size_t>(num_blocks)) {}

  static void reset() {
    num_listed_ = 0;
    num_violations_ = 0;
  }
  [[nodiscard]] static int num_listed() { return num_listed_; }
  [[nodiscard]] static int num_violations() { return num_violations_; }

  void insert(block_id block, const block_release& how) noexcept {
    if (enter(known(block) && !evictable(block) && (how.parent == no_block || known(how.parent)))) {
      tracked_[to_index(block)] = true;
      set_evictable(block, true);
      order_.insert(block, how);
    }
  }
  void remove(block_id block) noexcept {
    if (enter(known(block) && evictable(block))) {
      set_evictable(block, false);
      order_.remove(block);
    }
  }
  void erase(block_id block) noexcept {
    if (enter(known(block) && tracked(block))) {
      tracked_[to_index(block)] = false;
      set_evictable(block, false);
      order_.erase(block);
    }
  }
  void rename(block_id from, block_id to) noexcept {
    if (enter(known(from) && known(to) && !tracked(to))) {
      tracked_[to_index(to)] = tracked(from);
      tracked_[to_index(from)] = false;
      set_evictable(to, evictable(from));
      set_evictable(from, false);
      order_.rename(from, to);
    }
  }
  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp now) noexcept {
    const auto block = order_.victim(offer, now);
    if (enter(block == no_block || evictable(block)) && block != no_block) {
      tracked_[to_index(block)] = false;
      set_evictable(block, false);
    }
    return block;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return order_.metadata_bytes(); }

 private:
  [[nodiscard]] bool known(block_id block) const { return to_index(block) < tracked_.size(); }
  [[nodiscard]] bool tracked(block_id block) const { return tracked_[to_index(block)]; }
  [[nodiscard]] bool evictable(block_id block) const { return evictable_[to_index(block)]; }

  void set_evictable(block_id block, bool on) {
    num_listed_ += int{on} - int{evictable(block)};
    evictable_[to_index(block)] = on;
  }

  [[nodiscard]] bool enter(bool as_agreed) {
    calls_.write(calls_.read() + 1);
    num_violations_ += !as_agreed;
    return as_agreed;
  }

  static inline std::atomic<int> num_listed_{0};
  static inline std::atomic<int> num_violations_{0};

  lru order_;
  std::vector<bool> tracked_;
  std::vector<bool> evictable_;
  Data calls_;
};

static_assert(eviction_policy<audited_lru<>>);

}  // namespace pagedkv::testing
