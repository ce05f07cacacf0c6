// Caches with tiers beside the model: what was evicted is found again, whole and right.

#include "../support/everyday_seed.hpp"
#include "../support/full_numbers.hpp"
#include "../support/model_runs.hpp"
#include "group_lists.hpp"
#include "small_pools.hpp"
#include "tier_kinds.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <string>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// A run that met nothing interesting has tested nothing. Another seed than that of every day may miss what is rare.
void check_tier_coverage(const model_coverage& sum, const cache_kind& kind) {
  if (!has_everyday_seed()) {
    return;
  }
  INFO(kind.name);
  const auto has_slower = kind.name.find("host, ") != std::string::npos;
  CHECK(sum.exact_hits > 0);
  CHECK(sum.moves > 0);
  CHECK(sum.invalidated > 0);
  CHECK(sum.withdrawn > 0);
  CHECK(sum.failed_copies > 0);
  CHECK(sum.statistics.evictions > 0);
  CHECK(covered.host_hits > 0);
  CHECK((covered.slower_hits > 0) == has_slower);
  CHECK((covered.faults > 0) == has_slower);
}

}  // namespace

TEST_CASE("caches with groups and tiers behave as the model does", "[group_cache][tier][model][random]") {
  auto seed = std::uint64_t{Catch::getSeed()};
  const auto num_runs = testing::scaled<std::uint64_t>(2, 100);
  for (const auto& kind : kinds_with_tiers<layer_groups>()) {
    auto sum = model_coverage{};
    covered = {};
    for (const auto& [name, groups] : lists::named_group_lists()) {
      for (auto run = std::uint64_t{0}; run < num_runs; ++run, ++seed) {
        sum.add(run_random(kind, lists::draw_config(groups, 1, seed), name, seed, 200));
      }
    }
    check_tier_coverage(sum, kind);
  }
}

TEST_CASE("caches with one group and tiers behave as the model does", "[cache][tier][model][random]") {
  auto seed = std::uint64_t{Catch::getSeed()};
  const auto num_runs = testing::scaled<std::uint64_t>(12, 400);
  for (const auto& kind : kinds_with_tiers<one_group>()) {
    auto sum = model_coverage{};
    covered = {};
    for (const auto block_size : {1, 4, 16}) {
      for (auto run = std::uint64_t{0}; run < num_runs; ++run, ++seed) {
        const auto name = "block size " + std::to_string(block_size);
        sum.add(run_random(kind, draw_config(seed, block_size), name, seed, 300));
      }
    }
    check_tier_coverage(sum, kind);
  }
}
