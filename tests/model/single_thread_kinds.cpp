#include "../support/small_granules.hpp"
#include "cache_kinds.hpp"

namespace pagedkv::test {

template <>
cache_kinds kinds_with<single_thread>() {
  auto kinds = cache_kinds{
      .matrix = matrix_with<single_thread>(),
      .runs = {make_kind_with_runs<single_thread, lru>(), make_kind_with_runs<single_thread, no_eviction>()},
      .beside_arrays = {make_kind_beside_arrays<single_thread, lru>()},
      .granules = {make_kind<float16, single_thread, lru, nhd_layer_major, small_granules>()}};
  for_each_policy(all_layouts{}, [&]<class Layout>(std::type_identity<Layout>) {
    kinds.layouts.push_back(make_kind<float16, single_thread, lru, Layout>());
    kinds.layouts.push_back(make_kind<int8, single_thread, lru, Layout>());
  });
  return kinds;
}

}  // namespace pagedkv::test
