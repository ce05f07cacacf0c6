#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstdint>

/// Declarations without definitions, for headers of an engine that name pagedkv's types and should not depend on its
/// headers.
///
/// `kv_cache<Policies...>` recognises its policies by their definitions. Where only declarations are at hand, write the
/// type that it names: `basic_kv_cache<default_policies, int8, lock_free, clock_sweep>`, with the policies that differ
/// from the defaults, in the order element, locking, eviction, allocator, backend, layout, hash, events, free list,
/// groups. Any other list is refused when the cache is defined. A request tracker with the default policy is
/// `request_tracker<Cache, recompute>`.
namespace pagedkv {

enum class error_code : std::uint8_t;

struct error;
class exception;
template <class T>
class result;

struct cache_config;
struct sequence_options;
struct sequence_info;
struct release_hint;
struct admission;
struct cache_statistics;
struct memory_profile;
struct cache_event;
struct block_storage_view;
class padded_batch;
class compressed_batch;

struct default_policies;
template <class Defaults, class... Changes>
class basic_kv_cache;
template <class Defaults, class... Policies>
class basic_tiered_cache;
template <class Cache, class Preemption>
class request_tracker;

struct float32;
struct float16;
struct bfloat16;
struct int8;
struct float8_e4m3;
struct float8_e4m3fnuz;
struct float8_e5m2;
struct float8_e5m2fnuz;
struct float8_latent;

struct single_thread;
struct rw_lock;
struct sharded_mutex;
struct lock_free;

struct recompute;
struct no_preemption;

class lru;
class fifo;
class no_eviction;
class clock_sweep;
class sieve;
class lfu;
class slru;
class s3_fifo;
class arc;
class tiny_lfu;
class priority;
class hit_density;

struct host_allocator;
class caller_memory;
class shared_allocator;
struct no_memory;
struct host_backend;
struct copy_list;
class hip_backend;
namespace hip {
class device_allocator;
class mapping_allocator;
class pinned_allocator;
class pool_allocator;
}  // namespace hip

struct nhd_layer_major;
struct nhd_block_major;
struct hnd_layer_major;
struct hnd_block_major;
struct transposed_layer_major;
struct transposed_block_major;
struct shuffled_layer_major;
struct shuffled_block_major;

struct xxh3_hash;

struct any_free_block;
struct contiguous_runs;

struct one_group;
struct layer_groups;

struct no_events;
class event_queues;
class event_log;

}  // namespace pagedkv
