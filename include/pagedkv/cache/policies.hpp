#pragma once

#include <pagedkv/backend/concept.hpp>
#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/free_list/concept.hpp>
#include <pagedkv/policy/groups/concept.hpp>
#include <pagedkv/policy/hash/concept.hpp>
#include <pagedkv/policy/layout/concept.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/policy/locking/parts/mutexes.hpp>
#include <pagedkv/policy/preemption/concept.hpp>
#include <pagedkv/policy/tiers/concept.hpp>

#include <type_traits>

namespace pagedkv {

/// The decisions of a cache's policies.
using cache_axes = axes<element_axis, locking_axis, eviction_axis, allocator_axis, backend_axis, layout_axis, hash_axis,
                        events_axis, free_list_axis, groups_axis>;

template <class Defaults, class... Changes>
class basic_kv_cache;
template <class Defaults, class... Policies>
class basic_tiered_cache;

namespace detail {

/// A preemption policy among those of a cache, which does not use it.
struct preemption_elsewhere {
  template <class Policy>
  static constexpr bool takes = preemption_policy<Policy>;

  template <class Policy>
  static constexpr bool resembles = preemption_axis::resembles<Policy>;

  template <class Policy>
  struct lacks {
    static_assert(sizeof(Policy) == 0,
                  "this is a preemption policy, which decides nothing in a cache: give it to the tracker, "
                  "request_tracker<Cache, Preemption>");
  };
};

using axes_beside_cache = axes<tiers_axis, preemption_elsewhere>;

template <class Defaults, class Changes>
struct cache_with;
template <class Defaults, class... Changes>
struct cache_with<Defaults, policy_list<Changes...>> {
  using type = basic_kv_cache<Defaults, Changes...>;
  using type_with_tiers = basic_tiered_cache<Defaults, Changes...>;
};

template <bool Takes, class Policy>
using only_if = std::conditional_t<Takes, policy_list<Policy>, policy_list<>>;

template <class List>
inline constexpr auto size_of_list = 0;
template <class... Policies>
inline constexpr auto size_of_list<policy_list<Policies...>> = static_cast<int>(sizeof...(Policies));

/// The given policies by what they decide.
template <class Defaults, class... Policies>
struct sorted_policies {
  using host = decltype((policy_list<>{} + ... + only_if<memory_tier<Policies>, Policies>{}));
  using slower =
      decltype((policy_list<>{} + ... + only_if < tier_policy<Policies> && !memory_tier<Policies>, Policies > {}));
  using rest = decltype((policy_list<>{} + ... + only_if<!tier_policy<Policies>, Policies>{}));

  static_assert(size_of_list<host> < 2, "two host tiers are given, and a cache has one: leave the other out");

  template <class... Rest>
  static auto changes_of(policy_list<Rest...>) ->
      typename checked_policy_set<cache_axes, axes_beside_cache, Defaults, Rest...>::changes;
  using changes = decltype(changes_of(rest{}));

  /// The tiers come first, without the default one.
  using changes_and_tiers =
      decltype(std::conditional_t<std::is_same_v<host, policy_list<typename Defaults::host_tier_type>>, policy_list<>,
                                  host>{} +
               slower{} + changes{});
};

template <class Defaults, class... Policies>
struct named_cache {
  using sorted = sorted_policies<Defaults, Policies...>;
  using type = typename cache_with<Defaults, typename sorted::changes>::type;
};
template <class Defaults, class... Policies>
  requires(tier_policy<Policies> || ...)
struct named_cache<Defaults, Policies...> {
  using sorted = sorted_policies<Defaults, Policies...>;
  using type = typename cache_with<Defaults, typename sorted::changes_and_tiers>::type_with_tiers;
};

/// Fails to compile, with a sentence, where the policies of a cache do not work together. A type of its own, so that a
/// failure leaves the cache complete: compilers report nothing else.
template <class Defaults, class... Changes>
struct cache_check {
  using policies = policy_set<cache_axes, Defaults, Changes...>;
  using backend_type = typename policies::template on<backend_axis>;
  using allocator_type = typename policies::template on<allocator_axis>;
  using locking_type = typename policies::template on<locking_axis>;
  static constexpr bool layers_differ = policies::template on<groups_axis>::layers_differ;
  template <class Axis>
  static constexpr bool changed = !std::is_same_v<typename policies::template on<Axis>,
                                                  typename policy_set<cache_axes, Defaults>::template on<Axis>>;

  static_assert(
      std::is_same_v<typename policies::changes, policy_list<Changes...>>,
      "basic_kv_cache takes only the policies that differ from the defaults, in the order of cache_axes: write "
      "kv_cache<Policies...>, which takes them in any order");
  static_assert(provides_memory<allocator_type> || !uses_storage<backend_type>,
                "this backend copies blocks in memory that `no_memory` does not provide: add the backend `copy_list`, "
                "which lists the blocks to copy");
  static_assert(!provides_memory<allocator_type> || uses_storage<backend_type>,
                "this backend uses no memory of the cache's: leave the allocator out, or take a backend that copies");
  static_assert(provides_memory<allocator_type> || ((!changed<element_axis> || layers_differ) && !changed<layout_axis>),
                "a cache without memory stores no elements, in no layout: leave the element and the layout out");
  static_assert(
      !layers_differ || !locking_type::family::concurrent || has_nodes_mutex<typename locking_type::family>,
      "a cache with groups changes the blocks of several groups at once, behind a mutex, which lock_free does not "
      "have: use the locking policy `single_thread`, `rw_lock` or `sharded_mutex`");
  static_assert(layers_differ || !packs_tokens<typename policies::template on<element_axis>>,
                "this element stores latent vectors, which only groups have: add `layer_groups`, and a latent group");
  static_assert(
      strided_layout<typename policies::template on<layout_axis>> ||
          !packs_tokens<typename policies::template on<element_axis>>,
      "this element packs the numbers of a token, and this layout takes them apart: use an nhd or hnd layout");
  static_assert(!uses_storage<backend_type> || backend_for<backend_type, typename policies::template on<element_axis>>,
                "this backend cannot append and gather rows of this element: choose another of the two");
  static_assert(
      on_host<allocator_type> || !reads_on_host<backend_type>,
      "this backend works on the host, and this allocator's memory is out of the host's reach: use "
      "`hip_backend` with it, or the allocator `host_allocator` or `hip::pinned_allocator` with this backend");
};

}  // namespace detail

/// The cache with these policies: one type, in whatever order they are given, and whether or not a default is among
/// them. With a tier among them, `pagedkv/tier/tiered_cache.hpp` defines it.
template <class Defaults, class... Policies>
using kv_cache_of = typename detail::named_cache<Defaults, Policies...>::type;

/// The cache with host memory behind the device, also where no tier is given.
template <class Defaults, class... Policies>
using tiered_cache_of = typename detail::cache_with<
    Defaults, typename detail::sorted_policies<Defaults, Policies...>::changes_and_tiers>::type_with_tiers;

}  // namespace pagedkv
