#include "cache_world.hpp"

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

struct groups_cache {
  using cache_type = group_cache<float32, failing_allocator<>, failing_backend>;
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
  explicit groups_cache(fault_plan& plan)
      : cache(config(), failing_allocator<>{plan.memory}, failing_backend{plan.backend}) {}

  cache_type cache;
};

using groups_world = cache_world<groups_cache>;

}  // namespace

TEST_CASE("each operation of a cache with groups survives each fault", "[faults]") {
  CHECK(inject_faults(operations_of_caches<groups_world>()) > 10);
  constexpr auto others =
      std::array{faulty_operation<groups_world>{"drop behind windows and commit", [](groups_world& w) {
                                                  const auto dropped = w.cache.drop_behind_windows(w.third, 10);
                                                  return dropped ? error_of(w.cache.commit(w.third, 10))
                                                                 : std::optional<error>{dropped.error()};
                                                }}};
  inject_faults(others);
}

TEST_CASE("the construction of a cache with groups survives each fault", "[faults]") {
  CHECK(inject_into_construction(groups_cache::make) > 5);
}
