#pragma once

#include <pagedkv/policy/locking.hpp>
#include <pagedkv/policy/locking/contention.hpp>
#include <pagedkv/policy/locking/unsynchronized.hpp>

#include <atomic>

namespace pagedkv {

/// Components that many threads change at once and in which none waits for another.
struct lock_free_family {
  static constexpr bool concurrent = true;
};

/// Marks that a thread is inside; whoever comes second is told so and goes away.
template <template <class> class Atomic>
class busy_flag {
 public:
  [[nodiscard]] bool try_lock() noexcept { return !busy_.exchange(true, std::memory_order_acquire); }
  void unlock() noexcept { busy_.store(false, std::memory_order_release); }

 private:
  Atomic<bool> busy_{false};
};

/// Nobody waits: a thread stopped anywhere stops no other. A second operation on the same sequence gets
/// `sequence_busy`. `compact` and `check_invariants` are for moments when no other thread is at work.
template <template <class> class Atomic = std::atomic, contention_metrics Metrics = no_contention_metrics>
struct basic_lock_free {
  template <class T>
  using atomic = Atomic<T>;
  using cache_mutex = no_mutex;
  using sequence_mutex = busy_flag<Atomic>;
  using family = lock_free_family;
  using contention = Metrics;

  static constexpr bool waits_for_sequence = false;
  static constexpr std::string_view name = "lock_free";
};

using lock_free = basic_lock_free<>;

static_assert(locking<lock_free>);

}  // namespace pagedkv
