#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/parts/evictable_bitmap.hpp>
#include <pagedkv/policy/locking/parts/thread_index.hpp>
#include <pagedkv/policy/locking/parts/unsynchronized.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace pagedkv {

/// CLOCK with counters of `Bits` bits: a hand goes round the blocks in the order of their ids, takes one from the
/// counter of each evictable block that it passes, and evicts the first leaf whose counter is 0. A hit adds one. 5
/// bytes per block, and 4 KiB for the hands of threads.
///
/// All calls may come from several threads at once, without locks. The hand deals out stretches of neighbouring blocks,
/// and each thread goes through one of its own, so that two threads seldom write the same cache lines. Blocks in use
/// cost a search no more than their share of a bitmap. A counter may miss a hit that races another; but no block is
/// lost or taken twice, because the offer decides, and an index that was dropped from the bitmap on its word is offered
/// once more afterwards.
///
/// `ThreadIndex` has the interface of `this_thread_index`.
template <int Bits = 3, template <class> class Atomic = std::atomic, class ThreadIndex = this_thread_index>
class basic_clock_sweep {
  static_assert(Bits >= 1 && Bits <= 6);

 public:
  static constexpr std::string_view name = "clock_sweep";
  static constexpr bool concurrent = true;

  /// The policy where one thread at a time calls it.
  using for_one_thread = basic_clock_sweep<Bits, unsynchronized, only_thread_index>;

  explicit basic_clock_sweep(std::int32_t num_blocks)
      : evictable_(static_cast<std::size_t>(num_blocks)),
        counters_(static_cast<std::size_t>(num_blocks)),
        parents_(static_cast<std::size_t>(num_blocks)),
        stretch_(std::bit_floor(std::clamp(counters_.size() / 16, std::size_t{64}, std::size_t{512}))) {}

  void insert(block_id block, const block_release& release) noexcept {
    parents_[to_index(block)].store(release.parent, std::memory_order_relaxed);
    evictable_.set(to_index(block));
  }

  void remove(block_id block) noexcept {
    evictable_.reset(to_index(block));
    count_hit(block);
  }

  /// Removes blocks of which neighbours mostly follow each other.
  [[nodiscard]] auto removals() noexcept { return gathered_removals{*this}; }

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
    auto& own = hands_[threads_.current() % num_hands];
    const auto due = own.due.exchange(no_block, std::memory_order_relaxed);
    if (due != no_block && evictable_.test(to_index(due)) && load(due) == due_mark && try_take(due, offer, own)) {
      return due;
    }
    auto part = rest_of_stretch(own.place.load(std::memory_order_relaxed));
    auto counted_down = false;  // in this lap, perhaps by another thread
    auto is_alone = true;
    for (auto laps = 0; laps <= num_laps;) {
      if (const auto block = sweep(part, offer, own, counted_down); block != no_block) {
        return block;
      }
      const auto next = claim_stretch();
      if (next.end == 0) {
        break;
      }
      const bool others_swept = next.hand != place_of(part.lap, part.end);
      counted_down |= others_swept;
      is_alone &= !others_swept;
      if (next.lap != part.lap) {
        if (laps > 0 && !counted_down) {
          break;
        }
        ++laps;
        counted_down = others_swept;
      }
      part = next;
    }
    own.place.store(place_of(part.lap, part.end), std::memory_order_relaxed);
    // A leaf may be in a stretch of another thread.
    const auto leaf = is_alone ? no_block : take_first(offer, own);
    return leaf != no_block ? leaf : take_first(offer, own, evict_anyway);
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return evictable_.bytes() + counters_.capacity() * sizeof(Atomic<std::uint8_t>) +
           parents_.capacity() * sizeof(Atomic<block_id>) + sizeof hands_;
  }

 private:
  static constexpr auto max_count = (1 << Bits) - 1;
  // Set beside a count of 0 when the hand has passed the block because of its children: once those are gone it is next.
  static constexpr auto due_mark = 0x80;
  // The first may be cut short, the last must find every counter at 0.
  static constexpr auto num_laps = max_count + 2;
  static constexpr auto num_hands = std::size_t{std::is_same_v<ThreadIndex, only_thread_index> ? 1 : 64};

  class [[nodiscard]] gathered_removals {
   public:
    explicit gathered_removals(basic_clock_sweep& from) noexcept : from_(from), resets_(from.evictable_) {}

    void remove(block_id block) noexcept {
      resets_.reset(to_index(block));
      from_.count_hit(block);
    }

   private:
    basic_clock_sweep& from_;
    typename evictable_bitmap<Atomic>::gathered_resets resets_;
  };

  /// The hand of a thread, or of several if there are more threads than hands.
  struct alignas(64) own_hand {
    Atomic<std::uint64_t> place{0};  // of the next block; its stretch ends at the next multiple of `stretch_`
    Atomic<block_id> due{no_block};
  };

  [[nodiscard]] int load(block_id block) const noexcept {
    return counters_[to_index(block)].load(std::memory_order_relaxed);
  }
  void store(block_id block, int count) noexcept {
    counters_[to_index(block)].store(static_cast<std::uint8_t>(count), std::memory_order_relaxed);
  }

  void count_hit(block_id block) noexcept {
    const auto count = load(block) & max_count;
    store(block, count < max_count ? count + 1 : count);
  }

  /// Blocks `[first, end)`, in a lap of the hand.
  struct stretch {
    std::uint32_t lap = 0;
    std::size_t first = 0;
    std::size_t end = 0;
    std::uint64_t hand = 0;  // where it was before
  };

  /// A block and a lap, in the lower and the upper half.
  [[nodiscard]] static std::uint64_t place_of(std::uint32_t lap, std::size_t block) noexcept {
    return std::uint64_t{lap} << 32 | block;
  }
  [[nodiscard]] static std::uint32_t lap_of(std::uint64_t place) noexcept {
    return static_cast<std::uint32_t>(place >> 32);
  }
  [[nodiscard]] static std::size_t block_of(std::uint64_t place) noexcept { return static_cast<std::uint32_t>(place); }

  [[nodiscard]] stretch rest_of_stretch(std::uint64_t place) const noexcept {
    const auto first = block_of(place);
    return {lap_of(place), first, std::min((first + stretch_ - 1) & ~(stretch_ - 1), counters_.size())};
  }

  /// The next stretch, from its first evictable block on; an empty one if no block is evictable.
  [[nodiscard, gnu::noinline]] stretch claim_stretch() noexcept {
    auto hand = hand_.load(std::memory_order_relaxed);
    for (;;) {
      auto lap = lap_of(hand);
      auto first = evictable_.find(block_of(hand));
      if (first == counters_.size()) {
        ++lap;
        first = evictable_.find(0);
      }
      if (first == counters_.size()) {
        return {};
      }
      const auto end = std::min((first & ~(stretch_ - 1)) + stretch_, counters_.size());
      if (hand_.compare_exchange_weak(hand, place_of(lap, end), std::memory_order_relaxed,
                                      std::memory_order_relaxed)) {
        return {lap, first, end, hand};
      }
    }
  }

  /// Evicts the first leaf of a part whose counter is 0, and takes one from the counters before it.
  template <class Offer>
  [[nodiscard]] block_id sweep(const stretch& part, Offer& offer, own_hand& own, bool& counted_down) noexcept {
    for (auto at = part.first; at < part.end; ++at) {
      at = evictable_.find(at);
      if (at >= part.end) {
        break;
      }
      const auto block = to_block(at);
      if (const auto count = load(block) & max_count; count != 0) {
        store(block, count - 1);
        counted_down = true;
      } else if (try_take(block, offer, own)) {
        own.place.store(place_of(part.lap, at + 1), std::memory_order_relaxed);
        return block;
      }
    }
    return no_block;
  }

  template <class Offer, class... Anyway>
  [[nodiscard]] bool try_take(block_id block, Offer& offer, own_hand& own, Anyway... anyway) noexcept {
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
      own.due.store(parent, std::memory_order_relaxed);
    }
    return true;
  }

  template <class Offer, class... Anyway>
  [[nodiscard, gnu::noinline]] block_id take_first(Offer& offer, own_hand& own, Anyway... anyway) noexcept {
    for (auto at = evictable_.find_exhaustively(0); at < counters_.size(); at = evictable_.find_exhaustively(at + 1)) {
      if (try_take(to_block(at), offer, own, anyway...)) {
        return to_block(at);
      }
    }
    return no_block;
  }

  evictable_bitmap<Atomic> evictable_;
  std::vector<Atomic<std::uint8_t>> counters_;
  std::vector<Atomic<block_id>> parents_;
  std::size_t stretch_;  // blocks, a power of two
  [[no_unique_address]] ThreadIndex threads_;
  std::array<own_hand, num_hands> hands_{};
  alignas(64) Atomic<std::uint64_t> hand_{0};  // the place of the first block that is not dealt out
};

/// With counters of 3 bits.
class clock_sweep : public basic_clock_sweep<> {
 public:
  using basic_clock_sweep::basic_clock_sweep;
};

static_assert(eviction_policy<clock_sweep>);

}  // namespace pagedkv
