#include <pagedkv/policy/eviction/hit_density.hpp>
#include <pagedkv/policy/eviction/lru.hpp>

#include "../../examples/support/simulate.hpp"
#include "../../examples/support/workloads.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
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

TEST_CASE("hit_density learns from the answer's length who returns", "[eviction]") {
  // Half of the requests get a short answer: of these nine in ten are continued, of the others one in ten.
  auto random = std::mt19937_64{seed};
  auto waiting = std::vector<std::vector<std::uint64_t>>{};
  auto requests = std::vector<support::trace_request>(12'000);
  auto next_id = std::uint64_t{0};
  for (auto& request : requests) {
    if (waiting.size() > 60) {
      const auto chosen = waiting.begin() + static_cast<std::ptrdiff_t>(random() % waiting.size());
      request.blocks = *chosen;
      waiting.erase(chosen);
    }
    for (auto i = 1 + random() % 10; i > 0; --i) {
      request.blocks.push_back(next_id++);
    }
    const auto is_short = random() % 2 == 0;
    request.num_prompt_tokens = static_cast<std::uint32_t>(512 * request.blocks.size());
    request.num_output_tokens = static_cast<std::uint32_t>(is_short ? random() % 200 : 300 + random() % 700);
    if (random() % 10 < (is_short ? 9U : 1U)) {
      waiting.push_back(request.blocks);
    }
  }
  const auto ratios = compare(support::prefix_trace{requests}, 1000);
  CAPTURE(ratios.of_lru);
  CHECK(ratios.of_hit_density > ratios.of_lru + .05);
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
