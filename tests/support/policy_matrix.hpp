#pragma once

#include <pagedkv/policy/element/all.hpp>
#include <pagedkv/policy/eviction/all.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/policy/locking/all.hpp>

#include <type_traits>

/// The lists of policies, in the form that tests run over.
namespace pagedkv::test {

/// The form of a locking policy that finds work in the small pools of tests.
template <class Locking>
struct in_small_pool {
  using type = Locking;
};
/// Three shards, so that each has free blocks.
template <>
struct in_small_pool<sharded_mutex> {
  using type = basic_sharded_mutex<3>;
};

/// False for what `block_pool` refuses to compile.
template <class Locking, class Eviction>
inline constexpr bool works_together =
    Eviction::concurrent || !std::is_same_v<typename Locking::family, lock_free_family>;

/// Calls `visit(std::type_identity<P>{})` for every policy of a list.
template <class... Policies, class Visit>
void for_each_policy(policy_list<Policies...>, Visit&& visit) {
  (visit(std::type_identity<Policies>{}), ...);
}

/// Calls `visit(locking, eviction)`, both as `std::type_identity`, for every combination that works.
template <class Visit>
void for_each_locking_and_eviction(Visit&& visit) {
  for_each_policy(all_lockings{}, [&]<class Locking>(std::type_identity<Locking>) {
    using locking = typename in_small_pool<Locking>::type;
    for_each_policy(all_evictions{}, [&]<class Eviction>(std::type_identity<Eviction> eviction) {
      if constexpr (works_together<locking, Eviction>) {
        visit(std::type_identity<locking>{}, eviction);
      }
    });
  });
}

}  // namespace pagedkv::test
