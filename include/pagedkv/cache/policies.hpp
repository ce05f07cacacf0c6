#pragma once

#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/backend/concept.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/free_list/concept.hpp>
#include <pagedkv/policy/hash/concept.hpp>
#include <pagedkv/policy/layout/concept.hpp>
#include <pagedkv/policy/locking/concept.hpp>

#include <type_traits>

namespace pagedkv {

/// The decisions of a cache's policies.
using cache_axes =
    axes<element_axis, locking_axis, eviction_axis, allocator_axis, backend_axis, layout_axis, hash_axis, events_axis,
         free_list_axis>;

template <class Defaults, class... Changes>
class basic_kv_cache;
template <class Defaults, class... Changes>
class basic_group_cache;

namespace detail {

template <class Defaults, class Changes>
struct cache_with;
template <class Defaults, class... Changes>
struct cache_with<Defaults, policy_list<Changes...>> {
  using type = basic_kv_cache<Defaults, Changes...>;
  using type_with_groups = basic_group_cache<Defaults, Changes...>;
};

/// Fails to compile, with a sentence, where the policies of a cache do not work together. A type of its own, so that a
/// failure leaves the cache complete: compilers report nothing else.
template <class Defaults, class... Changes>
struct cache_check {
  using policies = policy_set<cache_axes, Defaults, Changes...>;
  using backend_type = typename policies::template on<backend_axis>;
  using allocator_type = typename policies::template on<allocator_axis>;
  template <class Axis>
  static constexpr bool changed = !std::is_same_v<typename policies::template on<Axis>,
                                                  typename policy_set<cache_axes, Defaults>::template on<Axis>>;

  static_assert(
      std::is_same_v<typename policies::changes, policy_list<Changes...>>,
      "basic_kv_cache and basic_group_cache take only the policies that differ from the defaults, in the order "
      "of cache_axes: write kv_cache<Policies...> or group_cache<Policies...>, which take them in any order");
  static_assert(provides_memory<allocator_type> || !uses_storage<backend_type>,
                "this backend copies blocks in memory that `no_memory` does not provide: add the backend `copy_list`, "
                "which lists the blocks to copy");
  static_assert(!provides_memory<allocator_type> || uses_storage<backend_type>,
                "this backend uses no memory of the cache's: leave the allocator out, or take a backend that copies");
  static_assert(provides_memory<allocator_type> || (!changed<element_axis> && !changed<layout_axis>),
                "a cache without memory stores no elements, in no layout: leave the element and the layout out");
  static_assert(!uses_storage<backend_type> || backend_for<backend_type, typename policies::template on<element_axis>>,
                "this backend cannot append and gather rows of this element: choose another of the two");
  static_assert(
      on_host<allocator_type> || !reads_on_host<backend_type>,
      "this backend works on the host, and this allocator's memory is out of the host's reach: use "
      "`hip_backend` with it, or the allocator `host_allocator` or `hip::pinned_allocator` with this backend");
};

}  // namespace detail

/// The cache with these policies: one type, in whatever order they are given, and whether or not a default is among
/// them.
template <class Defaults, class... Policies>
using kv_cache_of =
    typename detail::cache_with<Defaults,
                                typename checked_policy_set<cache_axes, Defaults, Policies...>::changes>::type;

/// The same for models with several kinds of layers; `pagedkv/cache/group_cache.hpp` defines it.
template <class Defaults, class... Policies>
using group_cache_of =
    typename detail::cache_with<Defaults, typename checked_policy_set<cache_axes, Defaults, Policies...>::changes>::
        type_with_groups;

}  // namespace pagedkv
