#include "cache_world.hpp"

#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_template_test_macros.hpp>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

template <class... Policies>
struct cache_of_groups {
  using cache_type = group_cache<float32, failing_allocator<>, failing_backend, Policies...>;
  static constexpr auto num_groups = std::size_t{3};
  static constexpr auto row_size = std::size_t{6};

  [[nodiscard]] static cache_config config() {
    auto made = cache_config{.block_size = 4, .num_blocks = 80, .max_sequences = 16};
    made.groups = {
        {.num_layers = 2, .key_dim = 6, .value_dim = 6},
        {.kind = group_kind::window, .num_layers = 5, .key_dim = 6, .value_dim = 6, .window = 7},
        {.kind = group_kind::state, .num_layers = 2, .num_kv_heads = 3, .state_bytes = 300},
    };
    made.hash_seed = 1;
    return made;
  }
  [[nodiscard]] static auto make(fault_plan& plan) {
    return cache_type::create(config(), failing_allocator<>{plan.memory}, failing_backend{plan.backend});
  }
  explicit cache_of_groups(fault_plan& plan)
      : cache(config(), failing_allocator<>{plan.memory}, failing_backend{plan.backend}) {}

  cache_type cache;
};

using unlocked_groups = cache_of_groups<>;
using sharded_groups = cache_of_groups<basic_sharded_mutex<3>>;

}  // namespace

TEMPLATE_TEST_CASE("each operation of a cache with groups survives each fault", "[faults]", unlocked_groups,
                   sharded_groups) {
  using world = cache_world<TestType>;
  using operation = faulty_operation<world>;
  CHECK(inject_faults(operations_of_caches<world>()) > 10);
  CHECK(inject_faults(queries_of_caches<world>()) > 2);
  constexpr auto others = std::array{
      operation{"drop_behind_windows and a commit",
                [](world& w) {
                  const auto dropped = w.cache.drop_behind_windows(w.third, 10);
                  return dropped ? error_of(w.cache.commit(w.third, 10)) : std::optional<error>{dropped.error()};
                }},
      operation{"next_saved_length", [](world& w) { return error_of(w.cache.next_saved_length(w.third)); }},
      operation{"num_skipped_tokens", [](world& w) { return error_of(w.cache.num_skipped_tokens(w.first, 1)); }},
  };
  inject_faults(others);
}

TEMPLATE_TEST_CASE("the construction of a cache with groups survives each fault", "[faults]", unlocked_groups,
                   sharded_groups) {
  CHECK(inject_into_construction(TestType::make) > 5);
}
