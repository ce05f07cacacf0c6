#pragma once

#include "cache_under_test.hpp"
#include "policy_matrix.hpp"

#include <vector>

namespace pagedkv::test {

/// The caches of one element under every locking and eviction policy that work together. Each element's are compiled in a
/// file of their own, tests/cache/matrix_<element>.cpp.
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

template <class Element>
[[nodiscard]] std::vector<cache_kind> make_matrix() {
  auto kinds = std::vector<cache_kind>{};
  for_each_locking_and_eviction(
      [&]<class Locking, class Eviction>(std::type_identity<Locking>, std::type_identity<Eviction>) {
        kinds.push_back(make_kind<Element, Locking, Eviction>());
      });
  return kinds;
}

/// Every element × locking × eviction.
[[nodiscard]] inline std::vector<cache_kind> full_matrix() {
  auto kinds = std::vector<cache_kind>{};
  for_each_type(all_elements{}, [&]<class Element>(std::type_identity<Element>) {
    const auto more = matrix_of<Element>();
    kinds.insert(kinds.end(), more.begin(), more.end());
  });
  return kinds;
}

}  // namespace pagedkv::test
