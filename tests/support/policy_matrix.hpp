#pragma once

#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/int8.hpp>
#include <pagedkv/policy/eviction/arc.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/eviction/fifo.hpp>
#include <pagedkv/policy/eviction/hit_density.hpp>
#include <pagedkv/policy/eviction/lfu.hpp>
#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/eviction/no_eviction.hpp>
#include <pagedkv/policy/eviction/priority.hpp>
#include <pagedkv/policy/eviction/s3_fifo.hpp>
#include <pagedkv/policy/eviction/sieve.hpp>
#include <pagedkv/policy/eviction/slru.hpp>
#include <pagedkv/policy/eviction/tiny_lfu.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/rw_lock.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>
#include <pagedkv/storage/layout.hpp>

#include <type_traits>

/// The one list of policies that tests run over: a new policy is added here, once.
namespace pagedkv::test {

template <class... Types>
struct type_list {};

using all_elements = type_list<float32, float16, bfloat16, int8>;
// Three shards: in the small pools of tests, each then has blocks to order.
using all_lockings = type_list<single_thread, rw_lock<>, sharded_mutex<3>, lock_free>;
using all_evictions =
    type_list<no_eviction, fifo, lru, clock_sweep, sieve, slru, arc, lfu, s3_fifo, tiny_lfu, priority, hit_density>;

template <dimension_order Dimensions, storage_order Storage>
using layout_of = memory_layout<Dimensions, Storage>;
using all_layouts = type_list<layout_of<dimension_order::nhd, storage_order::layer_major>,
                              layout_of<dimension_order::nhd, storage_order::block_major>,
                              layout_of<dimension_order::hnd, storage_order::layer_major>,
                              layout_of<dimension_order::hnd, storage_order::block_major>>;

/// False for what `block_pool` refuses to compile.
template <class Locking, class Eviction>
inline constexpr bool works_together =
    Eviction::concurrent || !std::is_same_v<typename Locking::family, lock_free_family>;

/// Calls `visit(std::type_identity<T>{})` for every type of a list.
template <class... Types, class Visit>
void for_each_type(type_list<Types...>, Visit&& visit) {
  (visit(std::type_identity<Types>{}), ...);
}

/// Calls `visit(locking, eviction)`, both as `std::type_identity`, for every combination that works.
template <class Visit>
void for_each_locking_and_eviction(Visit&& visit) {
  for_each_type(all_lockings{}, [&]<class Locking>(std::type_identity<Locking> locking) {
    for_each_type(all_evictions{}, [&]<class Eviction>(std::type_identity<Eviction> eviction) {
      if constexpr (works_together<Locking, Eviction>) {
        visit(locking, eviction);
      }
    });
  });
}

}  // namespace pagedkv::test
