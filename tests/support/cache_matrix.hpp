#pragma once

#include "cache_under_test.hpp"
#include "policy_matrix.hpp"

#include <vector>

namespace pagedkv::test {

/// The caches of one element under every locking and eviction policy that work together. Each element's are compiled in
/// a file of their own, tests/model/matrix_<element>.cpp.
template <class Element>
[[nodiscard]] std::vector<cache_kind> matrix_of();

template <>
std::vector<cache_kind> matrix_of<float32>();
template <>
std::vector<cache_kind> matrix_of<float16>();
template <>
std::vector<cache_kind> matrix_of<bfloat16>();
template <>
std::vector<cache_kind> matrix_of<int8>();

/// Which caches are compiled for their eviction policy: one that evicts for each locking policy, and those for which no
/// policy can be chosen later. A cache for each of them would take minutes to compile.
template <class Locking, class Eviction>
inline constexpr bool compiled_for =
    std::is_same_v<Eviction, lru> || !evicts<Eviction> || std::is_same_v<typename Locking::family, lock_free_family>;

template <class Element>
[[nodiscard]] std::vector<cache_kind> make_matrix() {
  auto kinds = std::vector<cache_kind>{};
  for_each_locking_and_eviction(
      [&]<class Locking, class Eviction>(std::type_identity<Locking>, std::type_identity<Eviction>) {
        if constexpr (compiled_for<Locking, Eviction>) {
          kinds.push_back(make_kind<Element, Locking, Eviction>());
        } else {
          kinds.push_back(make_kind_by_choice<Element, Locking, Eviction>());
        }
      });
  return kinds;
}

/// Every element × locking × eviction.
[[nodiscard]] inline std::vector<cache_kind> full_matrix() {
  auto kinds = std::vector<cache_kind>{};
  for_each_policy(all_elements{}, [&]<class Element>(std::type_identity<Element>) {
    const auto more = matrix_of<Element>();
    kinds.insert(kinds.end(), more.begin(), more.end());
  });
  return kinds;
}

}  // namespace pagedkv::test
