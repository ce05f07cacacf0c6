#pragma once

#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/backend/concept.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/hash/concept.hpp>
#include <pagedkv/policy/layout/concept.hpp>
#include <pagedkv/policy/locking/concept.hpp>

namespace pagedkv {

/// The decisions of a cache's policies.
using cache_axes =
    axes<element_axis, locking_axis, eviction_axis, allocator_axis, backend_axis, layout_axis, hash_axis, events_axis>;

template <class Defaults, class... Changes>
class basic_kv_cache;

namespace detail {

template <class Defaults, class Changes>
struct cache_with;
template <class Defaults, class... Changes>
struct cache_with<Defaults, policy_list<Changes...>> {
  using type = basic_kv_cache<Defaults, Changes...>;
};

}  // namespace detail

/// The cache with these policies: one type, in whatever order they are given, and whether or not a default is among
/// them.
template <class Defaults, class... Policies>
using kv_cache_of =
    typename detail::cache_with<Defaults,
                                typename checked_policy_set<cache_axes, Defaults, Policies...>::changes>::type;

}  // namespace pagedkv
