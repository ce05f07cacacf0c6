#pragma once

#if !defined(__cpp_concepts) || __cpp_concepts < 201907L
  #error "pagedkv needs C++20: compile with -std=c++20 or newer"
#endif

#include <pagedkv/cache/kv_cache.hpp>
#include <pagedkv/host/backend.hpp>
#include <pagedkv/policy/allocator/host_allocator.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/int8.hpp>
#include <pagedkv/policy/events/no_events.hpp>
#include <pagedkv/policy/eviction/fifo.hpp>
#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/eviction/no_eviction.hpp>
#include <pagedkv/policy/locking/rw_lock.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>
#include <pagedkv/requests/request_tracker.hpp>
#include <pagedkv/storage/sizing.hpp>

namespace pagedkv {

/// The cache with its default policies.
template <element Element = float16, locking Locking = single_thread, eviction_policy Eviction = lru,
          allocator Allocator = host_allocator, class Backend = host_backend, class Layout = memory_layout<>,
          block_hash Hash = xxh3_hash, events Events = no_events>
using kv_cache = basic_kv_cache<Element, Locking, Eviction, Allocator, Backend, Layout, Hash, Events>;

}  // namespace pagedkv
