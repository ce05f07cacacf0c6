#pragma once

#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/policy/locking/parts/contention.hpp>
#include <pagedkv/policy/locking/parts/mutexes.hpp>

#include <atomic>
#include <cstddef>

namespace pagedkv {

/// Components in `NumShards` parts, each behind a mutex of its own.
template <std::size_t NumShards, class Mutex, class Metrics>
struct sharded_family {
  static constexpr bool concurrent = true;
  static constexpr std::size_t num_shards = NumShards;

  /// A shard's mutex; debug builds check the order.
  template <lock_rank Rank>
  using mutex = ordered_mutex<Rank, Mutex, Metrics>;
};

/// A free list in `NumShards` parts, a mutex for each sequence, and one for the evictable order; threads meet only
/// where they touch the same of these. Block states and the prefix index are those of `lock_free`. An eviction policy
/// that supports several threads needs no mutex.
///
/// A cache with groups keeps one prefix index behind one mutex, and beside it a mutex for each sequence.
///
/// Lock order: gate (shared), one sequence or pin, the nodes of groups, the evictable order, one shard of the free
/// list. Debug builds check it of the mutexes. `compact`, `resize` and `check_invariants` close the gate: they
/// wait for operations under way, and later ones wait for them.
template <std::size_t NumShards = 16, class Mutex = std::mutex, contention_metrics Metrics = no_contention_metrics>
struct basic_sharded_mutex {
  static_assert(NumShards > 0, "sharded_mutex needs at least one shard");

  template <class T>
  using atomic = std::atomic<T>;
  using cache_mutex = gate<Metrics>;
  using sequence_mutex = ordered_mutex<lock_rank::sequence, Mutex, Metrics>;
  using family = sharded_family<NumShards, Mutex, Metrics>;
  using contention = Metrics;

  static constexpr bool waits_for_sequence = true;
  static constexpr std::string_view name = "sharded_mutex";
};

/// 16 shards over `std::mutex`.
struct sharded_mutex : basic_sharded_mutex<> {};

static_assert(locking<sharded_mutex>);

}  // namespace pagedkv
