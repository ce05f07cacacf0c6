#pragma once

#include "cache_under_test.hpp"
#include "policy_matrix.hpp"
#include "policy_parts.hpp"

#include <cstddef>
#include <vector>

namespace pagedkv::test {

/// The matrix is compiled in parts, side by side: part `i` has every `num_matrix_parts`-th element from the i-th on, in
/// a file of its own, tests/model/matrix_<i>.cpp.
inline constexpr auto num_matrix_parts = std::size_t{4};

template <std::size_t Part>
[[nodiscard]] std::vector<cache_kind> matrix_part();

template <>
std::vector<cache_kind> matrix_part<0>();
template <>
std::vector<cache_kind> matrix_part<1>();
template <>
std::vector<cache_kind> matrix_part<2>();
template <>
std::vector<cache_kind> matrix_part<3>();

/// Float16 meets every locking and eviction policy that work together; every other element meets each locking policy, and
/// each eviction policy in a cache for one thread: so each two choices meet. The formats of 8 bits differ in their
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

/// The caches of one element.
template <class Element>
void add_matrix_of(std::vector<cache_kind>& kinds) {
  for_each_locking_and_eviction(
      [&]<class Locking, class Eviction>(std::type_identity<Locking>, std::type_identity<Eviction>) {
        if constexpr (!in_matrix<Element, Locking, Eviction>) {
          return;
        } else if constexpr (compiled_for<Locking, Eviction>) {
          kinds.push_back(make_kind<Element, Locking, Eviction>());
        } else {
          kinds.push_back(make_kind_by_choice<Element, Locking, Eviction>());
        }
      });
}

template <std::size_t Part>
[[nodiscard]] std::vector<cache_kind> make_matrix_part() {
  auto kinds = std::vector<cache_kind>{};
  for_each_policy(support::part_of<Part, num_matrix_parts>(all_elements{}),
                  [&]<class Element>(std::type_identity<Element>) { add_matrix_of<Element>(kinds); });
  return kinds;
}

/// All pairs of an element, a locking and an eviction policy.
[[nodiscard]] inline std::vector<cache_kind> full_matrix() {
  auto kinds = std::vector<cache_kind>{};
  for (const auto& part : {matrix_part<0>(), matrix_part<1>(), matrix_part<2>(), matrix_part<3>()}) {
    kinds.insert(kinds.end(), part.begin(), part.end());
  }
  return kinds;
}

}  // namespace pagedkv::test
