// Blocks with neighbouring ids, where the free list prefers them.

#include "../support/cache_fixture.hpp"
#include "../support/eager_runs.hpp"
#include "../support/served_prompts.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/priority.hpp>
#include <pagedkv/policy/eviction/sieve.hpp>
#include <pagedkv/policy/free_list/all.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::test;

constexpr auto block_size = std::int32_t{2};

[[nodiscard]] cache_config config_with(std::int32_t num_blocks) {
  return {.block_size = block_size, .num_blocks = num_blocks, .head_dim = 1, .max_sequences = 64};
}

[[nodiscard]] std::vector<token> prompt_of(token first, std::size_t num_blocks) {
  return text(first, num_blocks * block_size);
}

}  // namespace

TEST_CASE("statistics count runs of consecutive ids in allocations of several blocks", "[runs]") {
  auto cache = kv_cache<>{config_with(32)};
  const auto first = cache.create_sequence(prompt_of(1, 12)).value().id;
  static_cast<void>(cache.create_sequence(prompt_of(100, 1)).value());
  const auto third = cache.create_sequence(prompt_of(200, 3)).value().id;
  auto taken = cache.statistics();
  CHECK(taken.blocks_together == 15);
  CHECK(taken.runs_together == 2);
  CHECK(taken.blocks_in_runs == 12);
  REQUIRE(cache.release(third));
  REQUIRE(cache.release(first));  // deepest first, so these come back in descending order
  static_cast<void>(cache.create_sequence(prompt_of(300, 15)).value());
  taken = cache.statistics();
  CHECK(taken.blocks_together == 30);
  CHECK(taken.runs_together > 2);
}

TEST_CASE("statistics count each long run of an allocation once", "[runs]") {
  auto cache = kv_cache<eager_runs>{config_with(32)};
  auto groups = std::vector<sequence_id>{};
  for (auto first = token{0}; first < 400; first += 100) {
    groups.push_back(cache.create_sequence(prompt_of(first, 8)).value().id);
  }
  REQUIRE(cache.release(groups[0]));
  REQUIRE(cache.release(groups[2]));
  const auto before = cache.statistics();
  static_cast<void>(cache.create_sequence(prompt_of(500, 16)).value());
  const auto after = cache.statistics();
  CHECK(after.runs_together - before.runs_together == 2);
  CHECK(after.blocks_in_runs - before.blocks_in_runs == 16);
}

TEMPLATE_TEST_CASE("a churned pool hands out runs and loses few hits", "[runs][random]", single_thread, rw_lock) {
  const auto seed = GENERATE(take(2, random(0U, 0xffff'ffffU)));
  CAPTURE(seed);
  const auto num_blocks = GENERATE(1200, 2000);
  CAPTURE(num_blocks);
  auto scattered = kv_cache<TestType>{config_with(num_blocks)};
  auto in_runs = kv_cache<TestType, contiguous_runs>{config_with(num_blocks)};
  const auto without = serve_conversations(scattered, seed, block_size);
  const auto with = serve_conversations(in_runs, seed, block_size);
  REQUIRE(without.evictions > 10 * num_blocks);
  check_runs(with, without);
}

TEST_CASE("runs never evict more than a part of the pool beyond what an allocation needs", "[runs]") {
  constexpr auto num_blocks = 1000;
  auto cache = kv_cache<contiguous_runs>{config_with(num_blocks)};
  auto random = std::mt19937{7};
  for (auto i = token{0}; i < 2000; ++i) {
    const auto available = cache.statistics().blocks;
    serve(cache, prompt_of(i * 1000, 1 + random() % 40));
    const auto now = cache.statistics().blocks;
    REQUIRE(now.free <= std::max<std::int64_t>(available.free, num_blocks * contiguous_runs::most_ahead / 1000));
  }
}

TEST_CASE("runs evict nothing under a policy that evicts nothing", "[runs]") {
  auto cache = kv_cache<contiguous_runs, no_eviction>{config_with(64)};
  for (auto i = token{0}; i < 6; ++i) {
    serve(cache, prompt_of(i * 100, 10));
  }
  CHECK_FALSE(cache.create_sequence(prompt_of(1000, 10)).has_value());
  CHECK(cache.statistics().evictions == 0);
  CHECK(cache.statistics().blocks.evictable == 60);
}

TEST_CASE("a policy that does not order by age decides alone", "[runs]") {
  auto scattered = kv_cache<sieve>{config_with(500)};
  auto in_runs = kv_cache<eager_runs, sieve>{config_with(500)};
  const auto without = serve_conversations(scattered, 5, block_size);
  const auto with = serve_conversations(in_runs, 5, block_size);
  CHECK(with.hit_blocks == without.hit_blocks);
  CHECK(with.evictions == without.evictions);
}

TEST_CASE("runs heed the order that a policy promises", "[runs]") {
  auto cache = kv_cache<eager_runs, priority>{config_with(64)};
  const auto kept = prompt_of(1, 9);
  serve(cache, kept, {.priority = 90});
  auto random = std::mt19937{3};
  for (auto i = token{0}; i < 300; ++i) {
    serve(cache, prompt_of(1000 + i * 100, 1 + random() % 30));
  }
  CHECK(serve(cache, kept) == 8 * block_size);
}

TEST_CASE("after compaction, the tail of a moved chain still completes a group", "[runs]") {
  auto cache = kv_cache<eager_runs>{config_with(32)};
  serve(cache, prompt_of(1, 32));
  serve(cache, prompt_of(100, 8));  // evicts: from now on, the age of victims is known
  REQUIRE(cache.reset_prefix_cache());
  const auto lower = cache.create_sequence(prompt_of(300, 8)).value().id;
  serve(cache, prompt_of(200, 12));
  REQUIRE(cache.release(lower));
  REQUIRE(cache.compact().value().size() == 8);  // the last eight blocks of the chain

  const auto before = cache.statistics();
  static_cast<void>(cache.create_sequence(prompt_of(400, 24)).value());
  const auto after = cache.statistics();
  CHECK(after.evictions - before.evictions == 12);  // four in turn, and the others to complete two groups
  CHECK(after.blocks_in_runs - before.blocks_in_runs == 24);
  CHECK(cache.check_invariants() == std::vector<std::string>{});
}

TEST_CASE("a refused allocation evicts nothing for runs", "[runs]") {
  auto cache = kv_cache<contiguous_runs>{config_with(64)};
  const auto held = cache.create_sequence(prompt_of(1, 30)).value().id;
  serve(cache, prompt_of(1000, 20));
  CHECK_FALSE(cache.create_sequence(prompt_of(2000, 40)).has_value());
  CHECK(cache.statistics().evictions == 0);
  REQUIRE(cache.release(held));
}
