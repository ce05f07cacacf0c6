#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/parts/evictable_bitmap.hpp>
#include <pagedkv/policy/locking/parts/unsynchronized.hpp>

#include <atomic>
#include <cstdint>
#include <vector>

namespace pagedkv {

/// CLOCK with counters of `Bits` bits: a hand goes round the blocks in the order of their ids, takes one from the
/// counter of each evictable block that it passes, and evicts the first leaf whose counter is 0. A hit adds one. 5
/// bytes per block.
///
/// All calls may come from several threads at once, without locks. Blocks in use cost a search no more than their share
/// of a bitmap. A counter may miss a hit that races another; but no block is lost or taken twice, because the offer
/// decides, and an index that was dropped from the bitmap on its word is offered once more afterwards.
template <int Bits = 3, template <class> class Atomic = std::atomic>
class basic_clock_sweep {
  static_assert(Bits >= 1 && Bits <= 6);

 public:
  static constexpr std::string_view name = "clock_sweep";
  static constexpr bool concurrent = true;

  /// The policy where one thread at a time calls it.
  using for_one_thread = basic_clock_sweep<Bits, unsynchronized>;

  explicit basic_clock_sweep(std::int32_t num_blocks)
      : evictable_(static_cast<std::size_t>(num_blocks)),
        counters_(static_cast<std::size_t>(num_blocks)),
        parents_(static_cast<std::size_t>(num_blocks)) {}

  void insert(block_id block, const block_release& release) noexcept {
    parents_[to_index(block)].store(release.parent, std::memory_order_relaxed);
    evictable_.set(to_index(block));
  }

  void remove(block_id block) noexcept {
    evictable_.reset(to_index(block));
    const auto count = load(block) & max_count;
    store(block, count < max_count ? count + 1 : count);
  }

  void erase(block_id block) noexcept {
    evictable_.reset(to_index(block));
    store(block, 0);
  }

  void rename(block_id from, block_id to) noexcept {
    store(to, load(from));
    const auto parent = parents_[to_index(from)].load(std::memory_order_relaxed);
    parents_[to_index(to)].store(parent, std::memory_order_relaxed);
    if (evictable_.test(to_index(from))) {
      evictable_.set(to_index(to));
    }
    erase(from);
  }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp) noexcept {
    const auto due = due_.exchange(no_block, std::memory_order_relaxed);
    if (due != no_block && evictable_.test(to_index(due)) && load(due) == due_mark && try_take(due, offer)) {
      return due;
    }
    auto at = static_cast<std::size_t>(hand_.load(std::memory_order_relaxed));
    auto counted_down = true;
    for (auto laps = 0; laps <= num_laps && (counted_down || laps <= 1); ++laps, at = 0) {
      counted_down = false;
      for (at = evictable_.find(at); at < counters_.size(); at = evictable_.find(at + 1)) {
        const auto block = to_block(at);
        if (const auto count = load(block) & max_count; count != 0) {
          store(block, count - 1);
          counted_down = true;
        } else if (try_take(block, offer)) {
          hand_.store(static_cast<std::uint32_t>(at + 1), std::memory_order_relaxed);
          return block;
        }
      }
    }
    return take_any(offer);
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return evictable_.bytes() + counters_.capacity() * sizeof(Atomic<std::uint8_t>) +
           parents_.capacity() * sizeof(Atomic<block_id>);
  }

 private:
  static constexpr auto max_count = (1 << Bits) - 1;
  // Set beside a count of 0 when the hand has passed the block because of its children: once those are gone it is next.
  static constexpr auto due_mark = 0x80;
  // The first may be cut short, the last must find every counter at 0.
  static constexpr auto num_laps = max_count + 2;

  [[nodiscard]] int load(block_id block) const noexcept {
    return counters_[to_index(block)].load(std::memory_order_relaxed);
  }
  void store(block_id block, int count) noexcept {
    counters_[to_index(block)].store(static_cast<std::uint8_t>(count), std::memory_order_relaxed);
  }

  template <class Offer, class... Anyway>
  [[nodiscard]] bool try_take(block_id block, Offer& offer, Anyway... anyway) noexcept {
    auto answer = offer(block, anyway...);
    if (answer == eviction_answer::in_use) {
      // A release sets the bit before this reset or after it: the block is offered here or later.
      evictable_.reset(to_index(block));
      answer = offer(block, anyway...);
      if (answer == eviction_answer::has_children || answer == eviction_answer::fenced) {
        evictable_.set(to_index(block));
      }
    }
    if (answer == eviction_answer::has_children) {
      store(block, due_mark);
    }
    if (answer != eviction_answer::taken) {
      return false;
    }
    erase(block);
    const auto parent = parents_[to_index(block)].load(std::memory_order_relaxed);
    if (parent != no_block && load(parent) == due_mark) {
      due_.store(parent, std::memory_order_relaxed);
    }
    return true;
  }

  template <class Offer>
  [[nodiscard]] block_id take_any(Offer& offer) noexcept {
    for (auto at = evictable_.find_exhaustively(0); at < counters_.size(); at = evictable_.find_exhaustively(at + 1)) {
      if (try_take(to_block(at), offer, evict_anyway)) {
        return to_block(at);
      }
    }
    return no_block;
  }

  evictable_bitmap<Atomic> evictable_;
  std::vector<Atomic<std::uint8_t>> counters_;
  std::vector<Atomic<block_id>> parents_;
  Atomic<std::uint32_t> hand_{0};
  Atomic<block_id> due_{no_block};
};

/// With counters of 3 bits.
class clock_sweep : public basic_clock_sweep<> {
 public:
  using basic_clock_sweep::basic_clock_sweep;
};

static_assert(eviction_policy<clock_sweep>);

}  // namespace pagedkv
