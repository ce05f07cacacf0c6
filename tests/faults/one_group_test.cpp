#include "cache_world.hpp"

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

struct one_group_cache {
  using cache_type = kv_cache<float32, failing_allocator<>, failing_backend>;
  static constexpr auto num_groups = std::size_t{1};
  static constexpr auto row_size = row_size_of_one_group;

  [[nodiscard]] static auto make(fault_plan& plan) {
    return cache_type::create(config_of_one_group(), failing_allocator<>{plan.memory}, failing_backend{plan.backend});
  }
  explicit one_group_cache(fault_plan& plan)
      : cache(config_of_one_group(), failing_allocator<>{plan.memory}, failing_backend{plan.backend}) {}

  cache_type cache;
};

using world = cache_world<one_group_cache>;

}  // namespace

TEST_CASE("each operation of a cache survives each fault", "[faults]") {
  CHECK(inject_faults(operations_of_caches<world>()) > 10);
  constexpr auto others = std::array{
      faulty_operation<world>{"drop before", [](world& w) { return error_of(w.cache.drop_before(w.first, 8)); }}};
  inject_faults(others);
}

TEST_CASE("the construction of a cache survives each fault", "[faults]") {
  CHECK(inject_into_construction(one_group_cache::make) > 5);
}
