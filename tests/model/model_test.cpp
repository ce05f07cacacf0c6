#include "../support/cache_beside_arrays.hpp"
#include "../support/cache_matrix.hpp"
#include "../support/cache_model.hpp"
#include "../support/eager_runs.hpp"
#include "../support/everyday_seed.hpp"
#include "../support/full_numbers.hpp"
#include "../support/model_runs.hpp"
#include "../support/small_granules.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// Pools so small that exhaustion and eviction are frequent.
[[nodiscard]] cache_config draw_config(std::uint64_t seed, std::int32_t block_size) {
  auto random = std::mt19937_64{seed};
  const auto between = [&](int low, int high) { return std::uniform_int_distribution{low, high}(random); };
  auto config = cache_config{};
  config.block_size = block_size;
  config.num_blocks = between(1, block_size == 16 ? 12 : 30);
  config.max_blocks = config.num_blocks + between(0, config.num_blocks);
  config.num_layers = between(1, 2);
  config.num_kv_heads = between(1, 2);
  config.head_dim = between(1, 5);
  config.max_sequences = between(1, 7);
  config.hash_seed = seed + 1;
  return config;
}

/// Runs random operations on a small cache.
[[nodiscard]] model_coverage run_random(const cache_kind& kind, std::int32_t block_size, std::uint64_t seed) {
  auto config = draw_config(seed, block_size);
  config.head_dim *= kind.piece;
  return run_random<cache_model>(kind, config, "block size " + std::to_string(block_size), seed, 300);
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
  CHECK(sum.revivals_checked > 0);
  CHECK(sum.keyed_hits > 0);
  CHECK(sum.chunks > 0);
  CHECK(sum.batch_entries > 0);
  CHECK(sum.batch_failures > 0);
  CHECK((sum.evicted_ahead > 0) == kind.evicts);
  CHECK(sum.statistics.hit_blocks > 0);
  CHECK((sum.statistics.evictions > 0) == kind.evicts);
  CHECK(sum.statistics.copies > 0);
  CHECK(sum.statistics.refusals > 0);
}

/// A cache without memory; numbers come back as they were written.
template <class Locking, class Eviction>
[[nodiscard]] cache_kind make_kind_beside_arrays() {
  auto kind = cache_kind{};
  kind.name = std::string(copy_list::name) + " " + std::string(Locking::name) + " " + std::string(Eviction::name);
  kind.evicts = evicts<Eviction>;
  kind.moves_to_fit = detail::runs_alone<Locking>;
  kind.compiled_for = true;
  kind.make = [](const cache_config& config) -> std::unique_ptr<cache_under_test> {
    return std::make_unique<adapted_cache<cache_beside_arrays<Locking, Eviction>>>(config);
  };
  return kind;
}

template <class Locking, class Eviction>
[[nodiscard]] cache_kind make_kind_with_runs() {
  auto kind = make_kind<float16, Locking, Eviction, nhd_layer_major>();
  kind.name.append(" ").append(contiguous_runs::name);
  kind.evicts_more = kind.evicts;
  kind.make = [](const cache_config& config) -> std::unique_ptr<cache_under_test> {
    return std::make_unique<adapted_cache<kv_cache<float16, Locking, Eviction, eager_runs>>>(config);
  };
  return kind;
}

}  // namespace

TEST_CASE("every element, locking and eviction policy behaves as the model does", "[cache][model][random]") {
  const auto kinds = full_matrix();
  for (const auto& kind : kinds) {
    const auto everyday = std::uint64_t{kind.compiled_for ? 30U : 20U};
    const auto num_runs = testing::scaled(everyday, 20 * everyday);
    auto sum = model_coverage{};
    for (const auto block_size : {1, 4, 16}) {
      for (auto run = std::uint64_t{0}; run < num_runs; ++run) {
        sum.add(run_random(kind, block_size, Catch::getSeed() + run));
      }
    }
    check_coverage(sum, kind);
  }
}

TEST_CASE("every memory layout behaves as the model does", "[cache][model][random]") {
  const auto num_runs = testing::scaled<std::uint64_t>(60, 1'200);
  for_each_policy(all_layouts{}, [&]<class Layout>(std::type_identity<Layout>) {
    const auto block_size = strided_layout<Layout> ? 4 : 16;
    for (const auto& kind :
         {make_kind<float16, single_thread, lru, Layout>(), make_kind<int8, single_thread, lru, Layout>()}) {
      auto sum = model_coverage{};
      for (auto run = std::uint64_t{0}; run < num_runs; ++run) {
        sum.add(run_random(kind, block_size, Catch::getSeed() + run));
      }
      check_coverage(sum, kind);
    }
  });
}

TEST_CASE("caches that prefer contiguous runs behave as the model does", "[cache][model][random]") {
  const auto num_runs = testing::scaled<std::uint64_t>(60, 1'200);
  for (const auto& kind : {make_kind_with_runs<single_thread, lru>(), make_kind_with_runs<rw_lock, lru>(),
                           make_kind_with_runs<rw_lock, sieve>(), make_kind_with_runs<single_thread, no_eviction>()}) {
    auto sum = model_coverage{};
    for (const auto block_size : {1, 4}) {
      for (auto run = std::uint64_t{0}; run < num_runs; ++run) {
        sum.add(run_random(kind, block_size, Catch::getSeed() + run));
      }
    }
    check_coverage(sum, kind);
  }
}

TEST_CASE("a cache beside an engine's own K/V behaves as the model does", "[cache][model][random]") {
  const auto num_runs = testing::scaled<std::uint64_t>(60, 1'200);
  for (const auto& kind :
       {make_kind_beside_arrays<single_thread, lru>(), make_kind_beside_arrays<lock_free, clock_sweep>()}) {
    auto sum = model_coverage{};
    for (auto run = std::uint64_t{0}; run < num_runs; ++run) {
      sum.add(run_random(kind, 4, Catch::getSeed() + run));
    }
    check_coverage(sum, kind);
  }
}

TEST_CASE("caches whose memory comes and goes behave as the model does", "[cache][model][random]") {
  const auto num_runs = testing::scaled<std::uint64_t>(60, 1'200);
  for (const auto& kind : {make_kind<float16, single_thread, lru, nhd_layer_major, small_granules>(),
                           make_kind<float32, lock_free, clock_sweep, nhd_block_major, small_granules>()}) {
    auto sum = model_coverage{};
    for (auto run = std::uint64_t{0}; run < num_runs; ++run) {
      sum.add(run_random(kind, 4, Catch::getSeed() + run));
    }
    check_coverage(sum, kind);
  }
}
