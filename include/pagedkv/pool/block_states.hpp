#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/policy/locking/parts/tally.hpp>

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

// The words of a pool's blocks, their counts by state, and leases on many of them.

namespace pagedkv {

/// Blocks by state. They add up to the pool.
struct block_counts {
  std::int64_t free = 0;
  std::int64_t in_use = 0;
  std::int64_t evictable = 0;
  std::int64_t retiring = 0;

  friend bool operator==(const block_counts&, const block_counts&) = default;
};

/// Number of evictable and of retiring blocks of a pool.
///
/// A transition to evictable is counted before it happens and read last; a transition from evictable is counted after
/// it happened and read first. So with other threads at work, no block that is evictable at a moment between the two
/// readings is missed.
template <locking Locking>
class block_tally {
 public:
  /// Counts a block that is about to become evictable, or reverts this. `counted` is false at first.
  void foresee_evictable(bool& counted, bool evictable) noexcept {
    if (counted != evictable) {
      sums_.add(evictable ? evictable_gained : evictable_lost, 1);
      counted = evictable;
    }
  }
  void add_evictable() noexcept { sums_.add(evictable_gained, 1); }
  void remove_evictable(std::int64_t amount = 1) noexcept { sums_.add(evictable_lost, amount); }
  void add_retiring(std::int64_t amount) noexcept { sums_.add(retiring, amount); }

  /// Calls `meanwhile()` between the two readings. Repeats both, a few times, if a transition from evictable came
  /// between: a delayed reader would otherwise count all later transitions to evictable.
  template <class Meanwhile>
  [[nodiscard]] std::int64_t num_evictable(Meanwhile&& meanwhile) const noexcept {
    for (auto attempts = 1;; ++attempts) {
      const auto lost = sums_.get(evictable_lost);
      meanwhile();
      const auto gained = sums_.get(evictable_gained);
      if (attempts == max_attempts || sums_.get(evictable_lost) == lost) {
        return gained - lost;
      }
    }
  }
  [[nodiscard]] std::int64_t num_evictable() const noexcept {
    return num_evictable([] {});
  }
  [[nodiscard]] std::int64_t num_retiring() const noexcept { return sums_.get(retiring); }

 private:
  static constexpr auto max_attempts = 4;
  static constexpr auto evictable_gained = std::size_t{0};
  static constexpr auto evictable_lost = std::size_t{1};
  static constexpr auto retiring = std::size_t{2};

  tally_for<Locking, 3> sums_;
};

/// One block's word: reference count, leases, flags, and the step that fences its reuse. One compare-and-swap changes
/// all of it, so the first swap decides between a prefix hit and an eviction.
///
/// A *lease* keeps a published block from eviction, like a reference, but does not change the block's state:
///
/// | state     | count | published | claimed | step                                         |
/// |-----------|-------|-----------|---------|----------------------------------------------|
/// | free      | 0     | no        | no      | 0                                            |
/// | in use    | ≥ 1   | either    | no      | the latest of an earlier holder, if open     |
/// | withdrawn | ≥ 1   | yes       | yes     | the same: in use, and out of reach of hits   |
/// | evictable | 0     | yes       | no      | 0                                            |
/// | claimed   | 0     | yes       | yes     | either: one thread is taking it away         |
/// | retiring  | 0     | either    | no      | the step that it waits for                   |
/// | outside   | 0     | no        | yes     | 0: the pool is too small for its id          |
class block_state {
 public:
  static constexpr std::uint32_t max_count = (std::uint32_t{1} << 20) - 1;
  static constexpr std::uint32_t max_leases = (std::uint32_t{1} << 10) - 1;

  constexpr block_state() noexcept = default;
  constexpr explicit block_state(std::uint64_t word) noexcept : word_(word) {}

  [[nodiscard]] static constexpr block_state fresh() noexcept { return block_state{1}; }
  [[nodiscard]] static constexpr block_state outside() noexcept { return block_state{claimed_bit}; }

  [[nodiscard]] constexpr std::uint64_t word() const noexcept { return word_; }
  [[nodiscard]] constexpr std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(word_ & max_count); }
  [[nodiscard]] constexpr std::uint32_t leases() const noexcept {
    return static_cast<std::uint32_t>(word_ / one_lease & max_leases);
  }
  [[nodiscard]] constexpr bool published() const noexcept { return (word_ & published_bit) != 0; }
  [[nodiscard]] constexpr bool claimed() const noexcept { return (word_ & claimed_bit) != 0; }
  [[nodiscard]] constexpr bool retiring() const noexcept { return count() == 0 && step() != 0; }
  [[nodiscard]] constexpr bool evictable() const noexcept {
    return count() == 0 && published() && !claimed() && step() == 0;
  }
  /// Whether the eviction order lists it: evictable, now or after its step has retired.
  [[nodiscard]] constexpr bool listed() const noexcept { return count() == 0 && published() && !claimed(); }
  [[nodiscard]] constexpr std::uint32_t step() const noexcept { return static_cast<std::uint32_t>(word_ >> 32); }

  /// Whether a lease or a reference can be taken without one: published, no thread takes it away, and the count is not
  /// full.
  [[nodiscard]] constexpr bool leasable() const noexcept {
    const bool far_from_full = (word_ & (published_bit | claimed_bit | upper_half_full)) == published_bit;
    return far_from_full || (published() && !claimed() && referable());
  }

  /// Whether one more reference fits, even if every lease becomes one.
  [[nodiscard]] constexpr bool referable() const noexcept { return count() + leases() < max_count; }

  /// The step stays, because it may still read an earlier holder's tokens.
  [[nodiscard]] constexpr block_state referenced() const noexcept { return block_state{word_ + 1}; }
  [[nodiscard]] constexpr block_state unreferenced() const noexcept { return block_state{word_ - 1}; }
  [[nodiscard]] constexpr block_state leased() const noexcept { return block_state{word_ + one_lease}; }
  [[nodiscard]] constexpr block_state unleased() const noexcept { return block_state{word_ - one_lease}; }
  [[nodiscard]] constexpr block_state with_published(bool on) const noexcept { return with(published_bit, on); }
  [[nodiscard]] constexpr block_state with_claimed(bool on) const noexcept { return with(claimed_bit, on); }
  [[nodiscard]] constexpr block_state with_step(std::uint32_t step) const noexcept {
    return block_state{(word_ & low_bits) | std::uint64_t{step} << 32};
  }

 private:
  static constexpr std::uint64_t one_lease = std::uint64_t{1} << 20;
  static constexpr std::uint64_t published_bit = std::uint64_t{1} << 30;
  static constexpr std::uint64_t claimed_bit = std::uint64_t{1} << 31;
  static constexpr std::uint64_t low_bits = 0xffff'ffff;
  static constexpr std::uint64_t upper_half_full = (max_count + 1) / 2 | (max_leases + 1) / 2 * one_lease;

  [[nodiscard]] constexpr block_state with(std::uint64_t flag, bool on) const noexcept {
    return block_state{on ? word_ | flag : word_ & ~flag};
  }

  std::uint64_t word_ = 0;
};

[[nodiscard]] constexpr std::optional<block_state> only_if(bool wanted, block_state state) noexcept {
  if (wanted) {
    return state;
  }
  return std::nullopt;
}

/// The state words of all blocks.
///
/// Memory orders: a change releases the thread's earlier writes to the block and acquires those before earlier changes.
/// So a thread that takes a reference on a published block sees its tokens and links, and a thread that gets a free
/// block sees all accesses of its last user.
template <locking Locking>
class block_words {
 public:
  explicit block_words(std::int32_t num_blocks)
      : num_blocks_(static_cast<std::size_t>(num_blocks)), words_(std::make_unique<word[]>(num_blocks_)) {}

  [[nodiscard]] block_state operator[](block_id block) const noexcept {
    return block_state{words_[to_index(block)].load(std::memory_order_acquire)};
  }

  [[gnu::always_inline]] void prefetch(block_id block) const noexcept {
    __builtin_prefetch(&words_[to_index(block)], 1);
  }

  /// Called by the only thread that may change this block now.
  void set(block_id block, block_state state) noexcept {
    words_[to_index(block)].store(state.word(), std::memory_order_release);
  }

  /// Replaces a block's state by `next(state)` in one step. Returns the previous state, or nothing if `next` returned
  /// nothing.
  template <class Next>
  std::optional<block_state> change(block_id block, Next&& next) noexcept {
    return change_here(block, next);
  }

  /// Takes a lease on a published block: it cannot be evicted until `end_lease`. False if it is not leasable, or with
  /// `max_leases` on it.
  [[nodiscard]] [[gnu::always_inline]] bool lease(block_id block) noexcept {
    const auto leased = [](block_state seen) {
      return only_if(seen.leasable() && seen.leases() < block_state::max_leases, seen.leased());
    };
    return change_here(block, leased).has_value();
  }
  [[gnu::always_inline]] void end_lease(block_id block) noexcept {
    change_here(block, [](block_state seen) {
      assert(seen.leases() > 0 && "a lease ends once");
      return only_if(seen.leases() > 0, seen.unleased());
    });
  }

  [[nodiscard]] contention_counts contention() const noexcept { return metrics_.counts(); }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return num_blocks_ * sizeof(word); }

 private:
  /// `change`, inlined: a look-up takes twice as long where it calls a function for each lease.
  template <class Next>
  [[gnu::always_inline]] std::optional<block_state> change_here(block_id block, Next&& next) noexcept {
    auto& shared = words_[to_index(block)];
    auto seen = shared.load(std::memory_order_acquire);
    for (;;) {
      const std::optional<block_state> wanted = next(block_state{seen});
      if (!wanted) {
        return std::nullopt;
      }
      if (shared.compare_exchange_weak(seen, wanted->word(), std::memory_order_acq_rel, std::memory_order_acquire)) {
        return block_state{seen};
      }
      metrics_.retried();
    }
  }

  using word = typename Locking::template atomic<std::uint64_t>;

  std::size_t num_blocks_;
  std::unique_ptr<word[]> words_;
  [[no_unique_address]] typename Locking::contention metrics_;
};

/// The state of every block of a pool, and how many are evictable or retiring.
template <locking Locking>
struct block_states {
  explicit block_states(std::int32_t num_blocks) : words(num_blocks) {}

  block_words<Locking> words;
  block_tally<Locking> tally;
};

/// Leases on published blocks, for look-ups: a lease keeps its block from eviction until it ends. Where no other thread
/// can evict a block during a look-up, nothing is counted.
template <locking Locking>
class block_leases {
 public:
  explicit block_leases(block_words<Locking>& words) noexcept : words_(words) {}

  [[nodiscard]] bool take(block_id block) const noexcept {
    if constexpr (Locking::family::concurrent) {
      return words_.lease(block);
    } else {
      return words_[block].leasable();
    }
  }
  void end([[maybe_unused]] block_id block) const noexcept {
    if constexpr (Locking::family::concurrent) {
      words_.end_lease(block);
    }
  }

 private:
  block_words<Locking>& words_;
};

}  // namespace pagedkv
