#pragma once

#if !defined(__cpp_concepts) || __cpp_concepts < 201907L
  #error "pagedkv needs C++20: compile with -std=c++20 or newer"
#endif

#include <pagedkv/cache/kv_cache.hpp>
#include <pagedkv/fwd.hpp>
#include <pagedkv/host/backend.hpp>
#include <pagedkv/policy/allocator/host_allocator.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/float8.hpp>
#include <pagedkv/policy/element/int8.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/fifo.hpp>
#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/free_list/all.hpp>
#include <pagedkv/policy/groups/all.hpp>
#include <pagedkv/policy/hash/all.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/policy/locking/rw_lock.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>
#include <pagedkv/policy/preemption/all.hpp>
#include <pagedkv/policy/preemption/concept.hpp>
#include <pagedkv/requests/request_tracker.hpp>
#include <pagedkv/storage/sizing.hpp>

namespace pagedkv {

template <allocator Allocator, eviction_policy Eviction>
struct basic_host_tier;

/// The policies of a cache for which none of an axis is named.
struct default_policies {
  using element_type = float16;
  using locking_type = single_thread;
  using eviction_type = lru;
  using allocator_type = host_allocator;
  using backend_type = host_backend;
  using layout_type = nhd_layer_major;
  using hash_type = xxh3_hash;
  using events_type = no_events;
  using free_list_type = any_free_block;
  using groups_type = one_group;
  using host_tier_type = basic_host_tier<host_allocator, lru>;  // of caches with tiers
};

/// The cache with these policies, in any order, and with the default ones for all other axes: for example
/// `kv_cache<int8, rw_lock>`.
template <class... Policies>
using kv_cache = kv_cache_of<default_policies, Policies...>;

/// The cache for models with several kinds of layers.
template <class... Policies>
using group_cache = kv_cache<layer_groups, Policies...>;

/// Host memory as a tier. Include `pagedkv/tier/tiered_cache.hpp`.
template <class Allocator = host_allocator, class Eviction = lru>
using host_tier = basic_host_tier<Allocator, Eviction>;

/// The cache with host memory behind its device, and slower tiers behind that if they are given.
template <class... Policies>
using tiered_cache = tiered_cache_of<default_policies, Policies...>;

/// The request tracker with its default policy.
template <class Cache, class Preemption = recompute>
class request_tracker;

/// `request_tracker(cache)` has the default policy.
template <class Cache>
request_tracker(Cache&, const tracker_config& = {}) -> request_tracker<Cache>;

}  // namespace pagedkv
