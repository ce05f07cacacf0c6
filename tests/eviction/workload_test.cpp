#include <pagedkv/policy/eviction/hit_density.hpp>
#include <pagedkv/policy/eviction/lru.hpp>

#include "../../examples/support/simulate.hpp"
#include "../../examples/support/workloads.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <vector>

using namespace pagedkv;

namespace {

constexpr auto seed = std::uint64_t{7};

struct comparison {
  double of_lru = 0.0;
  double of_hit_density = 0.0;
};

comparison compare(const support::prefix_trace& trace, std::int32_t num_blocks) {
  return {support::simulate<lru>(trace, num_blocks).hit_ratio(),
          support::simulate<hit_density>(trace, num_blocks).hit_ratio()};
}

}  // namespace

TEST_CASE("hit_density beats or equals lru on traffic of every kind", "[eviction]") {
  const auto kind = GENERATE(Catch::Generators::range(std::size_t{0}, support::workloads.size()));
  const auto& workload = support::workloads.at(kind);
  auto generator = support::workload_generator{seed};
  const auto trace = support::prefix_trace{(generator.*workload.generate)(12'000)};
  auto total_gain = 0.0;
  for (const auto num_blocks : {300, 1000, 3000, 8000}) {
    const auto ratios = compare(trace, num_blocks);
    CAPTURE(workload.name, num_blocks, ratios.of_lru);
    CHECK(ratios.of_hit_density >= ratios.of_lru - .005);
    total_gain += ratios.of_hit_density - ratios.of_lru;
  }
  CAPTURE(workload.name);
  CHECK(total_gain > -.01);
}

TEST_CASE("hit_density keeps shared prompts and survives scans far better than lru", "[eviction]") {
  auto generator = support::workload_generator{seed};
  const auto shared = support::prefix_trace{generator.shared_system_prompt(12'000)};
  const auto on_shared = compare(shared, 1000);
  CHECK(on_shared.of_hit_density > on_shared.of_lru + .08);
  const auto scans = support::prefix_trace{generator.scans(12'000)};
  const auto on_scans = compare(scans, 3000);
  CHECK(on_scans.of_hit_density > on_scans.of_lru + .01);
}

TEST_CASE("hit_density is not clearly worse than lru from a cold start", "[eviction]") {
  constexpr auto num_seeds = 4U;
  for (const auto& workload : support::workloads) {
    for (const auto num_blocks : {300, 1000, 3000}) {
      auto gain = 0.0;
      for (auto i = 0U; i < num_seeds; ++i) {
        auto generator = support::workload_generator{seed + i};
        const auto ratios = compare(support::prefix_trace{(generator.*workload.generate)(1500)}, num_blocks);
        gain += (ratios.of_hit_density - ratios.of_lru) / num_seeds;
      }
      CAPTURE(workload.name, num_blocks);
      CHECK(gain > -.005);
    }
  }
}
