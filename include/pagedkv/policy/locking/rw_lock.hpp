#pragma once

#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/policy/locking/parts/mutexes.hpp>
#include <pagedkv/policy/locking/parts/unsynchronized.hpp>

namespace pagedkv {

namespace detail {

template <class Mutex>
struct contention_of {
  using type = no_contention_metrics;
};
template <class Mutex>
  requires requires { typename Mutex::contention_type; }
struct contention_of<Mutex> {
  using type = typename Mutex::contention_type;
};

}  // namespace detail

/// Any number of readers or one writer in the whole cache. `Mutex` must not starve writers: glibc's `std::shared_mutex`
/// does. A sequence needs no mutex of its own, since every operation that changes one is a writer.
///
/// Contention is counted if the mutex does, as `basic_fair_shared_mutex<std::atomic, count_contention>` does.
template <shared_mutex Mutex>
struct basic_rw_lock {
  template <class T>
  using atomic = unsynchronized<T>;
  using cache_mutex = Mutex;
  using sequence_mutex = no_mutex;
  using family = unsynchronized_family;
  using contention = typename detail::contention_of<Mutex>::type;

  static constexpr bool waits_for_sequence = true;
  static constexpr std::string_view name = "rw_lock";
};

/// Over `fair_shared_mutex`, under which writers do not starve.
struct rw_lock : basic_rw_lock<fair_shared_mutex> {};

static_assert(locking<rw_lock>);

}  // namespace pagedkv
