#pragma once

#include <pagedkv/core/layout.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/int8.hpp>
#include <pagedkv/policy/eviction/fifo.hpp>
#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/eviction/no_eviction.hpp>
#include <pagedkv/policy/locking/rw_lock.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>

#include <type_traits>

/// The one list of policies that tests run over: a new policy is added here, once.
namespace pagedkv::test {

template <class... Types>
struct type_list {};

using all_elements = type_list<float32, float16, bfloat16, int8>;
using all_lockings = type_list<single_thread, rw_lock<>>;
using all_evictions = type_list<no_eviction, fifo, lru>;

template <dimension_order Dimensions, storage_order Storage>
using layout_of = memory_layout<Dimensions, Storage>;
using all_layouts = type_list<layout_of<dimension_order::nhd, storage_order::layer_major>,
                              layout_of<dimension_order::nhd, storage_order::block_major>,
                              layout_of<dimension_order::hnd, storage_order::layer_major>,
                              layout_of<dimension_order::hnd, storage_order::block_major>>;

/// What `block_pool` refuses to compile.
template <class Locking, class Eviction>
inline constexpr bool works_together = Eviction::concurrent || !Locking::family::concurrent;

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
