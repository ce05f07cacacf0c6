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
  CHECK(inject_faults(queries_of_caches<tiered_world>()) > 2);
  using operation = faulty_operation<tiered_world>;
  constexpr auto others = std::array{
      operation{"drop_before", [](tiered_world& w) { return error_of(w.cache.drop_before(w.first, 8)); }},
      operation{"create_sequence from the tier",
                [](tiered_world& w) { return error_of(w.cache.create_sequence(w.ended_tokens)); }, offload},
      operation{"invalidate_prefix in the tier",
                [](tiered_world& w) { return no_error(w.cache.invalidate_prefix(w.ended_tokens)); }, offload},
      operation{"settle", [](tiered_world& w) { return error_of(w.cache.settle(w.third)); }},
      operation{"poll", [](tiered_world& w) { return no_error(w.cache.poll(w.third)); }, offload},
      operation{"wait", [](tiered_world& w) { return no_error(w.cache.wait(w.third)); }, offload},
      operation{"wait_idle", [](tiered_world& w) { return no_error(w.cache.wait_idle()); }, offload},
      operation{"run_transfers", [](tiered_world& w) { return no_error(w.cache.run_transfers()); }, offload},
      operation{"tier", [](tiered_world& w) { return no_error(w.cache.tier(0)); }},
      operation{"host_bytes", [](tiered_world& w) { return no_error(w.cache.host_bytes()); }},
  };
  inject_faults(others);
}

TEST_CASE("the construction of a cache with a tier survives each fault", "[faults]") {
  CHECK(inject_into_construction(cache_with_tier::make) > 5);
}
