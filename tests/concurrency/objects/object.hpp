#pragma once

#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>

#include <cstdint>

namespace pagedkv::testing {

/// The functions that shared objects exchange. Each object is built from `object.cpp` and hides all symbols but
/// `entry`.
using shared_cache = kv_cache<float32, lock_free, clock_sweep, event_queues>;

struct object_entry {
  shared_cache* (*make_cache)();
  void (*destroy_cache)(shared_cache*);
  /// Creates, extends, forks and releases sequences. Returns the number of operations that failed unexpectedly.
  int (*use_cache)(shared_cache&, std::uint64_t seed, int num_rounds);
  bool (*is_sound)(shared_cache&);
  /// By the code of this object, the number of this thread in a component that any object may have made.
  this_thread_index (*make_index)();
  std::uint32_t (*current)(const this_thread_index&);
};

}  // namespace pagedkv::testing
