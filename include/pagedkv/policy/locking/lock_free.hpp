#pragma once

#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/policy/locking/parts/contention.hpp>
#include <pagedkv/policy/locking/parts/unsynchronized.hpp>

#include <atomic>

namespace pagedkv {

/// Components that many threads change at once and in which none waits for another.
struct lock_free_family {
  static constexpr bool concurrent = true;
};

/// No thread waits: a thread stopped anywhere stops no other. A second operation on the same sequence gets
/// `sequence_busy`. `compact` and `check_invariants` are for moments when no other thread is at work; `resize` moves
/// nothing.
template <template <class> class Atomic = std::atomic, contention_metrics Metrics = no_contention_metrics>
struct basic_lock_free {
  template <class T>
  using atomic = Atomic<T>;
  using cache_mutex = no_mutex;
  using sequence_mutex = no_mutex;
  using family = lock_free_family;
  using contention = Metrics;

  static constexpr bool waits_for_sequence = false;
  static constexpr std::string_view name = "lock_free";
};

/// Over `std::atomic`, without counts of contention.
struct lock_free : basic_lock_free<> {};

static_assert(locking<lock_free>);

}  // namespace pagedkv
