#include "../support/everyday_seed.hpp"
#include "../support/full_numbers.hpp"
#include "../support/model_runs.hpp"
#include "cache_kinds.hpp"
#include "small_pools.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// Runs random operations on a small cache.
[[nodiscard]] model_coverage run_random(const cache_kind& kind, std::int32_t block_size, std::uint64_t seed) {
  auto config = draw_config(seed, block_size);
  config.head_dim *= kind.piece;
  return run_random(kind, config, "block size " + std::to_string(block_size), seed, 300);
}

/// A run that met nothing interesting has tested nothing. Another seed than that of every day may miss what is rare.
void check_coverage(const model_coverage& sum, const cache_kind& kind) {
  if (!has_everyday_seed()) {
    return;
  }
  INFO(kind.name);
  CHECK(sum.moves > 0);
  CHECK(sum.growths > 0);
  CHECK(sum.shrinkings > 0);
  CHECK(sum.exact_hits > 0);
  CHECK(sum.revivals_checked > 0);
  CHECK(sum.keyed_hits > 0);
  CHECK(sum.chunks > 0);
  CHECK(sum.batch_entries > 0);
  CHECK(sum.batch_failures > 0);
  CHECK((sum.evicted_ahead > 0) == kind.evicts);
  CHECK(sum.invalidated > 0);
  CHECK(sum.withdrawn > 0);
  CHECK((sum.failed_copies > 0) == kind.announces);
  CHECK(sum.statistics.hit_blocks > 0);
  CHECK((sum.statistics.evictions > 0) == kind.evicts);
  CHECK(sum.statistics.copies > 0);
  CHECK(sum.statistics.refusals > 0);
}

/// Runs a cache with each of these block sizes: so many times, or, for long runs, twenty times as often.
void check_kind(const cache_kind& kind, std::initializer_list<std::int32_t> block_sizes, std::uint64_t everyday = 60) {
  const auto num_runs = testing::scaled(testing::halved_if_sanitized(everyday), 20 * everyday);
  auto sum = model_coverage{};
  for (const auto block_size : block_sizes) {
    for (auto run = std::uint64_t{0}; run < num_runs; ++run) {
      sum.add(run_random(kind, block_size, Catch::getSeed() + run));
    }
  }
  check_coverage(sum, kind);
}

void check_kinds(const std::vector<cache_kind>& kinds, std::initializer_list<std::int32_t> block_sizes) {
  REQUIRE(!kinds.empty());
  for (const auto& kind : kinds) {
    check_kind(kind, block_sizes);
  }
}

}  // namespace

TEST_CASE("every element, locking and eviction policy behaves as the model does", "[cache][model][random]") {
  const auto kinds = all_kinds().matrix;
  REQUIRE(!kinds.empty());
  for (const auto& kind : kinds) {
    check_kind(kind, {1, 4, 16}, kind.compiled_for ? 30 : 20);
  }
}

TEST_CASE("every memory layout behaves as the model does", "[cache][model][random]") {
  const auto kinds = all_kinds().layouts;
  REQUIRE(!kinds.empty());
  for (const auto& kind : kinds) {
    check_kind(kind, {kind.piece == 1 ? 4 : 16});
  }
}

TEST_CASE("caches that prefer contiguous runs behave as the model does", "[cache][model][random]") {
  check_kinds(all_kinds().runs, {1, 4});
}

TEST_CASE("a cache beside an engine's own K/V behaves as the model does", "[cache][model][random]") {
  check_kinds(all_kinds().beside_arrays, {4});
}

TEST_CASE("caches whose memory comes and goes behave as the model does", "[cache][model][random]") {
  check_kinds(all_kinds().granules, {4});
}
