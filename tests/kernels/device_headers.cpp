// Every header that a file of a device's compiler may include, and all members of the caches, for nvcc's and hipcc's
// front ends. Nothing runs it.

#include <pagedkv/backend/copy_list.hpp>
#include <pagedkv/c/pagedkv.h>
#include <pagedkv/device/allocators.hpp>
#include <pagedkv/device/backend.hpp>
#include <pagedkv/device/device.hpp>
#include <pagedkv/device/mapping_allocator.hpp>
#include <pagedkv/device/memory_ledger.hpp>
#include <pagedkv/device/stream.hpp>
#include <pagedkv/events/event_log.hpp>
#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/host/thread_pool.hpp>
#include <pagedkv/metrics/prometheus.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/allocator/all.hpp>
#include <pagedkv/policy/allocator/caller_memory.hpp>
#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/allocator/shared_allocator.hpp>
#include <pagedkv/policy/element/all.hpp>
#include <pagedkv/policy/eviction/all.hpp>
#include <pagedkv/policy/free_list/all.hpp>
#include <pagedkv/policy/groups/all.hpp>
#include <pagedkv/policy/hash/all.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/policy/locking/all.hpp>
#include <pagedkv/policy/preemption/all.hpp>
#include <pagedkv/requests/metrics.hpp>
#include <pagedkv/router/keys.hpp>
#include <pagedkv/router/llm_d_keys.hpp>
#include <pagedkv/router/worker_feed.hpp>
#include <pagedkv/storage/sizing.hpp>
#include <pagedkv/tier/hand_over.hpp>
#include <pagedkv/tier/redis_config.hpp>
#include <pagedkv/tier/remote_tier.hpp>
#include <pagedkv/tier/session_file.hpp>
#include <pagedkv/tier/tiered_cache.hpp>
#include <pagedkv/wire/apply.hpp>

#if __has_include(<boost/lockfree/queue.hpp>)
  #include <pagedkv/pool/boost_free_list.hpp>
#endif
#if __has_include(<hiredis/hiredis.h>)
  #include <pagedkv/tier/redis_client.hpp>
  #include <pagedkv/tier/redis_connection.hpp>
#endif
#if __has_include(<liburing.h>)
  #include <pagedkv/tier/file_tier.hpp>
#endif
#if __has_include(<msgpuck.h>) && __has_include(<zmq.hpp>)
  #include <pagedkv/wire/event_publisher.hpp>
  #include <pagedkv/wire/event_subscriber.hpp>
#endif

namespace device_headers {

using namespace pagedkv;

/// Code for devices has constants, too.
template <class Element>
constexpr bool keeps_one = Element::decode(Element::encode(1.0F, 1.0F), 1.0F) == 1.0F;
static_assert(keeps_one<float32> && keeps_one<float16> && keeps_one<bfloat16> && keeps_one<int8>);
static_assert(keeps_one<float8_e4m3> && keeps_one<float8_e5m2>);

using plain = kv_cache<hip_backend, event_queues, sharded_mutex>;
using without_locks = kv_cache<hip_backend, lock_free, clock_sweep, int8>;
using with_groups = group_cache<hip_backend, event_queues, float8_latent>;
#if __has_include(<liburing.h>)
using with_tiers = tiered_cache<hip_backend, host_tier<hip::pinned_allocator>, file_tier, event_queues, rw_lock>;
#else
using with_tiers = tiered_cache<hip_backend, host_tier<hip::pinned_allocator>, event_queues, rw_lock>;
#endif

/// The calls of an engine, beside the members of the caches.
template <class Cache>
void use(Cache& cache, Cache& other, typename Cache::stream_type stream) {
  const auto options = session_options<hip::pinned_allocator>{};
  static_cast<void>(save_sequence(cache, sequence_id{}, "session", options, stream));
  static_cast<void>(restore_sequence(cache, "session", options, stream));
  static_cast<void>(hand_over(cache, sequence_id{}, other, {}, stream));
  auto tracker = request_tracker{cache};
  static_cast<void>(tracker.submit(token_run{}, {}, stream));
  static_cast<void>(tracker.append(request_id{}, token{}, stream));
  static_cast<void>(tracker.fork(request_id{}, stream));
  static_cast<void>(tracker.resume(request_id{}, token_run{}, stream));
  static_cast<void>(cache.statistics());
  static_cast<void>(cache.check_invariants());
}

template void use(plain&, plain&, hip_backend::stream_type);
template void use(without_locks&, without_locks&, hip_backend::stream_type);
template void use(with_groups&, with_groups&, hip_backend::stream_type);
template void use(with_tiers&, with_tiers&, hip_backend::stream_type);

}  // namespace device_headers

#if __has_include(<hiredis/hiredis.h>)
template class pagedkv::remote_tier<pagedkv::redis_client>;
#endif
