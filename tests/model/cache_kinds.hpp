#pragma once

#include "../support/adapted_cache.hpp"
#include "../support/cache_beside_arrays.hpp"
#include "../support/eager_runs.hpp"
#include "../support/policy_matrix.hpp"

#include <string>
#include <type_traits>
#include <vector>

namespace pagedkv::test {

/// The caches without groups that a file compiles, by the test that runs them.
struct cache_kinds {
  std::vector<cache_kind> matrix = {};
  std::vector<cache_kind> layouts = {};
  std::vector<cache_kind> runs = {};
  std::vector<cache_kind> beside_arrays = {};
  std::vector<cache_kind> granules = {};

  void add(const cache_kinds& more) {
    for (const auto part : {&cache_kinds::matrix, &cache_kinds::layouts, &cache_kinds::runs,
                            &cache_kinds::beside_arrays, &cache_kinds::granules}) {
      (this->*part).insert((this->*part).end(), (more.*part).begin(), (more.*part).end());
    }
  }
};

/// Those with one locking policy, from tests/model/<policy>_kinds.cpp. Most of a cache's code depends on its locking
/// and eviction policy alone, so it is compiled once for all elements, layouts and allocators.
template <class Locking>
[[nodiscard]] cache_kinds kinds_with();

/// Those of all locking policies. A policy without a file does not link.
[[nodiscard]] inline cache_kinds all_kinds() {
  auto kinds = cache_kinds{};
  for_each_policy(all_lockings{},
                  [&]<class Locking>(std::type_identity<Locking>) { kinds.add(kinds_with<Locking>()); });
  return kinds;
}

/// Float16 meets every locking and eviction policy that work together; every other element meets each locking policy,
/// and each eviction policy in a cache for one thread: so each two choices meet. The formats of 8 bits differ in their
/// conversions, and are stored like int8: one cache each.
template <class Element, class Locking, class Eviction>
inline constexpr bool in_matrix =
    std::is_same_v<Element, float16> ||
    (is_float8<Element> ? std::is_same_v<Locking, single_thread> && std::is_same_v<Eviction, lru>
                        : std::is_same_v<Locking, single_thread> || std::is_same_v<Eviction, lru> ||
                              (std::is_same_v<typename Locking::family, lock_free_family> && evicts<Eviction>));

/// Which caches are compiled for their eviction policy: one that evicts for each locking policy, and those for which no
/// policy can be chosen later. A cache for each of them would take minutes to compile.
template <class Locking, class Eviction>
inline constexpr bool compiled_for =
    std::is_same_v<Eviction, lru> || !evicts<Eviction> || std::is_same_v<typename Locking::family, lock_free_family>;

/// Every element and eviction policy of the matrix with this locking policy.
template <class Locking>
[[nodiscard]] std::vector<cache_kind> matrix_with() {
  using locking = typename in_small_pool<Locking>::type;
  auto kinds = std::vector<cache_kind>{};
  const auto add = [&]<class Element, class Eviction>(std::type_identity<Element>, std::type_identity<Eviction>) {
    if constexpr (!works_together<locking, Eviction> || !in_matrix<Element, locking, Eviction>) {
      return;
    } else if constexpr (compiled_for<locking, Eviction>) {
      kinds.push_back(make_kind<Element, locking, Eviction>());
    } else {
      kinds.push_back(make_kind_by_choice<Element, locking, Eviction>());
    }
  };
  for_each_policy(all_elements{}, [&]<class Element>(std::type_identity<Element> element) {
    for_each_policy(all_evictions{}, [&](auto eviction) { add(element, eviction); });
  });
  return kinds;
}

/// A cache without memory; numbers come back as they were written.
template <class Locking, class Eviction>
[[nodiscard]] cache_kind make_kind_beside_arrays() {
  auto kind = describe_kind<float32, Locking, Eviction, nhd_layer_major>();
  kind.name.insert(0, std::string(copy_list::name) + " ");
  return made_as<cache_beside_arrays<Locking, Eviction>>(kind);
}

template <class Locking, class Eviction>
[[nodiscard]] cache_kind make_kind_with_runs() {
  auto kind = describe_kind<float16, Locking, Eviction, nhd_layer_major>();
  kind.name.append(" ").append(contiguous_runs::name);
  kind.evicts_more = kind.evicts;
  return made_as<kv_cache<float16, Locking, Eviction, eager_runs>>(kind);
}

}  // namespace pagedkv::test
