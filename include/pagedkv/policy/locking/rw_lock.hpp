#pragma once

#include <pagedkv/policy/locking.hpp>
#include <pagedkv/policy/locking/fair_shared_mutex.hpp>
#include <pagedkv/policy/locking/unsynchronized.hpp>

namespace pagedkv {

/// Any number of readers or one writer in the whole cache. `Mutex` must not starve writers: glibc's `std::shared_mutex`
/// does. A sequence needs no mutex of its own, since every operation that changes one is a writer.
template <shared_mutex Mutex = fair_shared_mutex>
struct rw_lock {
  template <class T>
  using atomic = unsynchronized<T>;
  using cache_mutex = Mutex;
  using sequence_mutex = no_mutex;
  using family = unsynchronized_family;
  using contention = no_contention_metrics;

  static constexpr bool waits_for_sequence = true;
  static constexpr std::string_view name = "rw_lock";
};

static_assert(locking<rw_lock<>>);

}  // namespace pagedkv
