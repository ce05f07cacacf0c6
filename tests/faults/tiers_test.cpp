#include "cache_world.hpp"

#include <pagedkv/tier/tiered_cache.hpp>

#include <catch2/catch_template_test_macros.hpp>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using failing_host_tier = host_tier<failing_allocator<>>;

[[nodiscard]] failing_host_tier host_of(fault_plan& plan, std::int32_t num_records) {
  return {num_records, failing_allocator<>{plan.memory}};
}

struct one_group_in_tiers {
  using cache_type = tiered_cache<float32, failing_allocator<>, failing_backend, failing_host_tier>;
  static constexpr auto num_groups = std::size_t{1};
  static constexpr auto row_size = row_size_of_one_group;
  static constexpr auto num_records = 10;
  static constexpr auto config = config_of_one_group;
};
struct groups_in_tiers {
  using cache_type = tiered_cache<float32, layer_groups, failing_allocator<>, failing_backend, failing_host_tier>;
  static constexpr auto num_groups = number_of_groups;
  static constexpr auto row_size = row_size_of_groups;
  static constexpr auto num_records = 30;
  static constexpr auto config = config_of_groups;
};

template <class Kind>
struct cache_with_tier : Kind {
  using cache_type = typename Kind::cache_type;

  [[nodiscard]] static auto make(fault_plan& plan) {
    return cache_type::create(Kind::config(), {}, host_of(plan, Kind::num_records), {},
                              failing_allocator<>{plan.memory}, failing_backend{plan.backend});
  }
  explicit cache_with_tier(fault_plan& plan)
      : cache(Kind::config(), {}, host_of(plan, Kind::num_records), {}, failing_allocator<>{plan.memory},
              failing_backend{plan.backend}) {}

  cache_type cache;
};

/// Moves the evictable chain to host memory.
template <class World>
void offload(World& w) {
  const auto id = w.cache.create_sequence(w.longest).value().id;
  REQUIRE(w.cache.release(id));
  w.cache.wait_idle();
}

/// Begins to bring it back.
template <class World>
void load(World& w) {
  offload(w);
  w.ids.push_back(w.cache.create_sequence(w.ended_tokens).value().id);
}

}  // namespace

TEMPLATE_TEST_CASE("each operation of a cache with a tier survives each fault", "[faults]", one_group_in_tiers,
                   groups_in_tiers) {
  using world = cache_world<cache_with_tier<TestType>>;
  using operation = faulty_operation<world>;
  CHECK(inject_faults(operations_of_caches<world>()) > 10);
  CHECK(inject_faults(queries_of_caches<world>()) > 2);
  constexpr auto others = std::array{
      operation{"create_sequence from the tier",
                [](world& w) { return error_of(w.cache.create_sequence(w.ended_tokens)); }, offload<world>},
      without_faults(operation{"invalidate_prefix in the tier",
                               [](world& w) { return no_error(w.cache.invalidate_prefix(w.ended_tokens)); },
                               offload<world>}),
      without_faults(operation{"find_prefix_in_tiers",
                               [](world& w) { return no_error(w.cache.find_prefix_in_tiers(w.ended_tokens)); },
                               offload<world>},
                     !TestType::cache_type::layers_differ),
      without_faults(operation{"settle", [](world& w) { return error_of(w.cache.settle(w.ids.back())); }, load<world>}),
      without_faults(operation{"poll", [](world& w) { return no_error(w.cache.poll(w.ids.back())); }, load<world>}),
      without_faults(operation{"wait", [](world& w) { return no_error(w.cache.wait(w.ids.back())); }, load<world>}),
      without_faults(operation{"wait_idle", [](world& w) { return no_error(w.cache.wait_idle()); }, load<world>}),
      without_faults(
          operation{"run_transfers", [](world& w) { return no_error(w.cache.run_transfers()); }, load<world>}),
      without_faults(operation{"tier", [](world& w) { return no_error(w.cache.tier(0)); }}),
      without_faults(operation{"host_bytes", [](world& w) { return no_error(w.cache.host_bytes()); }}),
  };
  inject_faults(others);
  if constexpr (!TestType::cache_type::layers_differ) {
    constexpr auto of_one_group = std::array{
        without_faults(operation{"drop_before", [](world& w) { return error_of(w.cache.drop_before(w.first, 8)); }}),
    };
    inject_faults(of_one_group);
  }
}

TEMPLATE_TEST_CASE("the construction of a cache with a tier survives each fault", "[faults]", one_group_in_tiers,
                   groups_in_tiers) {
  CHECK(inject_into_construction(cache_with_tier<TestType>::make) > 5);
}
