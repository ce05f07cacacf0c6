// `pagedkv/fwd.hpp` declares what the other headers define.

#include <pagedkv/fwd.hpp>

#include <memory>

namespace {

using forwarded_cache = pagedkv::basic_kv_cache<pagedkv::default_policies, pagedkv::int8, pagedkv::lock_free,
                                                pagedkv::clock_sweep, pagedkv::event_queues>;

/// As in the header of an engine.
struct engine {
  std::shared_ptr<forwarded_cache> cache;
  std::shared_ptr<pagedkv::request_tracker<forwarded_cache, pagedkv::recompute>> tracker;
};

}  // namespace

#include <pagedkv/backend/copy_list.hpp>
#include <pagedkv/device/allocators.hpp>
#include <pagedkv/device/backend.hpp>
#include <pagedkv/device/mapping_allocator.hpp>
#include <pagedkv/events/event_log.hpp>
#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/allocator/caller_memory.hpp>
#include <pagedkv/policy/allocator/shared_allocator.hpp>
#include <pagedkv/policy/element/all.hpp>
#include <pagedkv/policy/eviction/all.hpp>
#include <pagedkv/policy/free_list/all.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/policy/locking/all.hpp>

#include <catch2/catch_test_macros.hpp>

#include <type_traits>

namespace {

using namespace pagedkv;

template <class... Types>
constexpr bool are_defined = (... && (sizeof(Types) > 0));

static_assert(are_defined<error, exception, result<int>, cache_config, sequence_options, sequence_info, release_hint,
                          admission, cache_statistics, memory_profile, cache_event, block_storage_view, padded_batch,
                          compressed_batch, default_policies>);
static_assert(are_defined<hip_backend, hip::device_allocator, hip::mapping_allocator, hip::pinned_allocator,
                          hip::pool_allocator>);
static_assert(are_defined<float32, float16, bfloat16, int8, single_thread, rw_lock, sharded_mutex, lock_free>);
static_assert(are_defined<lru, fifo, no_eviction, clock_sweep, sieve, lfu, slru, s3_fifo, arc, tiny_lfu, priority,
                          hit_density>);
static_assert(are_defined<nhd_layer_major, nhd_block_major, hnd_layer_major, hnd_block_major, xxh3_hash, no_events,
                          event_queues, event_log, any_free_block, contiguous_runs, host_allocator, caller_memory,
                          shared_allocator, no_memory, host_backend, copy_list>);
static_assert(sizeof(basic_kv_cache<default_policies, int8, lock_free, clock_sweep>) > 0);  // fwd.hpp's example

}  // namespace

TEST_CASE("an engine's header declares the cache that its source defines", "[fwd]") {
  STATIC_CHECK(std::is_same_v<forwarded_cache, kv_cache<event_queues, clock_sweep, lock_free, int8>>);
  const auto config = cache_config{.num_blocks = 4};
  auto running = engine{};
  running.cache = std::make_shared<forwarded_cache>(config, event_queues{config.block_size});
  running.tracker = std::make_shared<request_tracker<forwarded_cache>>(*running.cache);
  CHECK(running.tracker->submit({}));
}
