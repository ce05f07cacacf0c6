#pragma once

#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/policy/locking/parts/unsynchronized.hpp>

#include <type_traits>

namespace pagedkv {

/// One thread at a time, by the caller's promise. Costs nothing.
struct single_thread {
  template <class T>
  using atomic = unsynchronized<T>;
  using cache_mutex = no_mutex;
  using sequence_mutex = no_mutex;
  using family = unsynchronized_family;
  using contention = no_contention_metrics;

  static constexpr bool waits_for_sequence = true;
  static constexpr std::string_view name = "single_thread";
};

static_assert(locking<single_thread>);
static_assert(std::is_empty_v<single_thread::cache_mutex> && std::is_empty_v<single_thread::sequence_mutex>);
static_assert(sizeof(single_thread::atomic<std::uint64_t>) == sizeof(std::uint64_t));

}  // namespace pagedkv
