// Blocks with neighbouring ids in caches with groups, where the free list prefers them.

#include "../support/eager_runs.hpp"
#include "../support/served_prompts.hpp"

#include "group_engine.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/free_list/all.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// Groups whose blocks hold as many tokens, so that a run of the window's breaks one of the other's.
[[nodiscard]] group_list two_groups() {
  auto sliding = full;
  sliding.kind = group_kind::window;
  sliding.window = 40;
  return {full, sliding};
}

/// The runs in a block table, unless it has one block only.
void add_runs(cache_statistics& sum, const std::vector<block_id>& blocks) {
  if (blocks.size() < 2) {
    return;
  }
  auto length = std::int64_t{0};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    ++length;
    if (i + 1 == blocks.size() || to_index(blocks[i + 1]) != to_index(blocks[i]) + 1) {
      ++sum.runs_together;
      sum.blocks_in_runs += length >= 8 ? length : 0;
      length = 0;
    }
  }
  sum.blocks_together += std::ssize(blocks);
}

}  // namespace

TEMPLATE_TEST_CASE("statistics count runs of each group's table", "[group_cache][runs]", group_cache<float32>,
                   (group_cache<float32, contiguous_runs>), (group_cache<float32, contiguous_runs, rw_lock>)) {
  auto e = engine<TestType>{config_of({latent, full, state}, 900)};
  auto expected = cache_statistics{};
  for (auto i = 0; i < 6; ++i) {
    const auto id = e.create(counted(20 + 200 * i, 10'000 * i)).value();
    for (std::size_t g = 0; g < 3; ++g) {
      add_runs(expected, e.table(g, id));
    }
  }
  const auto taken = e.cache.statistics();
  CHECK(taken.blocks_together == expected.blocks_together);
  CHECK(taken.runs_together == expected.runs_together);
  CHECK(taken.blocks_in_runs == expected.blocks_in_runs);
  CHECK(taken.blocks_in_runs > 0);
}

TEMPLATE_TEST_CASE("a churned pool of groups hands out runs and loses few hits", "[group_cache][runs][random]",
                   single_thread, rw_lock) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  const auto config = config_of(two_groups(), 3000, 2);
  auto scattered = group_cache<float32, TestType>{config};
  auto in_runs = group_cache<float32, TestType, contiguous_runs>{config};
  const auto block_size = static_cast<std::size_t>(in_runs.plan().groups[0].block_size);
  const auto without = serve_conversations(scattered, seed, block_size);
  REQUIRE(without.evictions > 10 * config.num_blocks);
  check_runs(serve_conversations(in_runs, seed, block_size), without);
}

TEST_CASE("runs take the tail of a chain with what it makes useless in other groups", "[group_cache][runs]") {
  auto e = engine<group_cache<float32, eager_runs>>{config_of(two_groups(), 64)};
  const auto block_size = e.cache.plan().groups[0].block_size;
  REQUIRE(e.cache.plan().groups[1].block_size == block_size);
  const auto serve_blocks = [&](int num_blocks, int first) {
    const auto id = e.create(counted(num_blocks * block_size, first)).value();
    e.compute(id);
    e.release(id);
  };
  for (auto round = 0; round < 40; ++round) {
    serve_blocks(8 + round % 9, 10'000 * round);
    REQUIRE(e.cache.check_invariants() == std::vector<std::string>{});
  }
  const auto before = e.cache.statistics();
  const auto held = e.create(counted(16 * block_size, 900'000)).value();
  const auto after = e.cache.statistics();
  CHECK(after.blocks_in_runs - before.blocks_in_runs == 32);
  CHECK(after.blocks.in_use == 32);
  e.compute(held);
  e.check(held);
  CHECK(e.cache.check_invariants() == std::vector<std::string>{});
}

TEST_CASE("a refused allocation of groups evicts nothing for runs", "[group_cache][runs]") {
  auto e = engine<group_cache<float32, contiguous_runs>>{config_of(two_groups(), 64)};
  const auto block_size = e.cache.plan().groups[0].block_size;
  const auto held = e.create(counted(15 * block_size)).value();
  const auto cached = e.create(counted(10 * block_size, 10'000)).value();
  e.compute(cached);
  e.release(cached);
  CHECK_FALSE(e.create(counted(20 * block_size, 20'000)));
  CHECK(e.cache.statistics().evictions == 0);
  e.release(held);
}

TEST_CASE("runs of groups evict nothing under a policy that evicts nothing", "[group_cache][runs]") {
  auto e = engine<group_cache<float32, contiguous_runs, no_eviction>>{config_of(two_groups(), 64)};
  const auto block_size = e.cache.plan().groups[0].block_size;
  const auto cached = e.create(counted(20 * block_size)).value();
  e.compute(cached);
  e.release(cached);
  CHECK_FALSE(e.create(counted(20 * block_size, 20'000)));
  CHECK(e.cache.statistics().evictions == 0);
}
