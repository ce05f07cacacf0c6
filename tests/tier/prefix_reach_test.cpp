#include "fake_tiers.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/groups/all.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using one_group_cache = kv_cache<float32, host_tier<>, placed_tier>;
using groups_cache = kv_cache<float32, layer_groups, host_tier<>, placed_tier>;

template <class Cache>
[[nodiscard]] cache_config device_config() {
  auto made = cache_config{.block_size = 4, .num_blocks = 64, .head_dim = 8, .max_sequences = 16};
  made.hash_seed = 1;
  if constexpr (Cache::layers_differ) {
    const auto full = group_config{.num_layers = 1, .key_dim = 8, .value_dim = 8};
    auto window = full;
    window.kind = group_kind::window;
    window.window = 6;
    made.groups = {full, window};
  }
  return made;
}

/// A device whose blocks the test evicts, few records in host memory, and a store with room for so many.
template <class Cache>
struct three_places {
  explicit three_places(std::int32_t num_stored)
      : cache(config, tiers, host_tier<>{20}, std::tuple{placed_tier{store, num_stored, Cache::format_of(config, "")}}) {}

  [[nodiscard]] static std::vector<token> prompt(token first, std::int64_t num_tokens) {
    auto tokens = std::vector<token>(static_cast<std::size_t>(num_tokens));
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }
  void settle() {
    while (cache.run_transfers() != 0) {
    }
  }
  /// Takes all that there is of a prompt, and leaves it on the device.
  admission serve(std::span<const token> tokens) {
    const auto made = cache.create_sequence(tokens).value();
    settle();
    REQUIRE(cache.settle(made.id));
    REQUIRE(cache.commit(made.id, made.num_tokens));
    REQUIRE(cache.release(made.id));
    settle();
    return made;
  }
  void evict(std::size_t count) {
    auto blocks = std::array<block_id, 64>{};
    const auto step = cache.begin_step().value();
    REQUIRE(cache.evict(std::span{blocks}.first(count), step));
    REQUIRE(cache.retire_step(step));
    settle();
  }

  cache_config config = device_config<Cache>();
  tier_config tiers = [] {
    auto made = tier_config{};
    made.threads = false;
    return made;
  }();
  std::shared_ptr<fake_store> store = std::make_shared<fake_store>();
  Cache cache;
};

}  // namespace

TEMPLATE_TEST_CASE("a look-up tells how much of a prompt each place has", "[tier][random]", one_group_cache,
                   groups_cache) {
  auto random = std::mt19937{Catch::getSeed()};
  auto places = three_places<TestType>{GENERATE(24, 256)};  // chains with gaps, and with none
  auto num_partial = std::array<int, 3>{};
  for (auto round = 0; round < 300; ++round) {
    places.serve(places.prompt(static_cast<token>(100 * (random() % 8)), 9 + static_cast<std::int64_t>(random() % 24)));
    places.evict(random() % 24);
    const auto first = static_cast<token>(100 * (random() % 8));
    const auto asked = places.prompt(first, static_cast<std::int64_t>(random() % 40));
    const auto reach = std::as_const(places.cache).find_prefix_in_tiers(asked);
    CHECK(reach.on_device == places.cache.find_prefix(asked));
    CHECK(reach.on_device <= reach.with_host_memory);
    CHECK(reach.with_host_memory <= reach.with_slower_tiers);
    CHECK(places.cache.find_prefix_in_tiers(asked, salt{1}).with_slower_tiers == 0);
    num_partial[0] += reach.on_device != 0;
    num_partial[1] += reach.with_host_memory > reach.on_device;
    num_partial[2] += reach.with_slower_tiers > reach.with_host_memory;
    const auto made = places.serve(asked);
    CHECK(made.num_cached_tokens == reach.with_host_memory);
    CHECK(made.num_cached_tokens + made.num_loading_tokens == reach.with_slower_tiers);
    REQUIRE(places.cache.check_invariants() == std::vector<std::string>{});
  }
  CHECK(std::ranges::min(num_partial) > 4);
}
