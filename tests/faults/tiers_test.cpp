#include "cache_world.hpp"

#include <pagedkv/tier/tiered_cache.hpp>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

struct cache_with_tier {
  using cache_type = tiered_cache<float32, failing_allocator<>, failing_backend>;
  static constexpr auto num_groups = std::size_t{1};
  static constexpr auto row_size = row_size_of_one_group;

  [[nodiscard]] static auto make(fault_plan& plan) {
    return cache_type::create(config_of_one_group(), {}, {10}, {}, failing_allocator<>{plan.memory},
                              failing_backend{plan.backend});
  }
  explicit cache_with_tier(fault_plan& plan)
      : cache(config_of_one_group(), {}, {10}, {}, failing_allocator<>{plan.memory}, failing_backend{plan.backend}) {}

  cache_type cache;
};

using tiered_world = cache_world<cache_with_tier>;

/// Moves the evictable chain to host memory.
void offload(tiered_world& w) {
  const auto id = w.cache.create_sequence(w.longest).value().id;
  REQUIRE(w.cache.release(id));
  w.cache.wait_idle();
}

}  // namespace

TEST_CASE("each operation of a cache with a tier survives each fault", "[faults]") {
  CHECK(inject_faults(operations_of_caches<tiered_world>()) > 10);
  constexpr auto others = std::array{
      faulty_operation<tiered_world>{"drop before",
                                     [](tiered_world& w) { return error_of(w.cache.drop_before(w.first, 8)); }},
      faulty_operation<tiered_world>{"create from the tier",
                                     [](tiered_world& w) { return error_of(w.cache.create_sequence(w.ended_tokens)); },
                                     offload},
      faulty_operation<tiered_world>{"settle", [](tiered_world& w) { return error_of(w.cache.settle(w.third)); }},
  };
  inject_faults(others);
}

TEST_CASE("the construction of a cache with a tier survives each fault", "[faults]") {
  CHECK(inject_into_construction(cache_with_tier::make) > 5);
}
