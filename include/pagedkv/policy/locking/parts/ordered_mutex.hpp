#pragma once

#include <pagedkv/policy/locking/parts/contention.hpp>

#include <cassert>
#include <cstdint>
#include <mutex>

namespace pagedkv {

/// The order in which a thread may lock mutexes: each of a higher rank than all that it holds.
enum class lock_rank : std::uint8_t { sequence = 1, group_nodes, eviction_order, free_list_shard };

/// The ranks that this thread holds, one bit each; only in debug builds.
class held_ranks {
 public:
  static void add([[maybe_unused]] lock_rank rank) noexcept {
#ifndef NDEBUG
    assert(ranks_ < bit(rank) && "mutexes are taken in the order of their ranks");
    ranks_ |= bit(rank);
#endif
  }
  static void remove([[maybe_unused]] lock_rank rank) noexcept {
#ifndef NDEBUG
    ranks_ &= ~bit(rank);
#endif
  }

#ifndef NDEBUG
 private:
  [[nodiscard]] static unsigned bit(lock_rank rank) noexcept { return 1U << static_cast<unsigned>(rank); }

  static inline thread_local unsigned ranks_ = 0;
#endif
};

/// A mutex that checks the lock order and counts waits.
template <lock_rank Rank, class Mutex = std::mutex, contention_metrics Metrics = no_contention_metrics>
class ordered_mutex {
 public:
  void lock() {
    held_ranks::add(Rank);
    if (!mutex_.try_lock()) {
      metrics_.waited();
      mutex_.lock();
    }
  }

  [[nodiscard]] bool try_lock() {
    const auto locked = mutex_.try_lock();
    if (locked) {
      held_ranks::add(Rank);
    }
    return locked;
  }

  void unlock() {
    held_ranks::remove(Rank);
    mutex_.unlock();
  }

  [[nodiscard]] contention_counts contention() const noexcept { return metrics_.counts(); }

 private:
  Mutex mutex_;
  [[no_unique_address]] Metrics metrics_;
};

}  // namespace pagedkv
