#include "../../examples/replay/replayed_trace.hpp"
#include "../../examples/support/foresight.hpp"
#include "../../examples/support/known_pauses.hpp"
#include "../../examples/support/simulate.hpp"
#include "../../examples/support/trace.hpp"
#include "../../examples/support/workloads.hpp"
#include "../support/over_policies.hpp"

#include <pagedkv/policy/eviction/all.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

// The share of block references that each policy finds cached, by the number of blocks: of recorded requests, and of
// generated ones. Nothing here depends on time: every run on every machine gives the same figures.

using namespace pagedkv;

namespace {

using support::prefix_trace;
using support::trace_request;

struct traffic {
  std::string name;
  std::vector<std::int32_t> sizes;
  bool is_recorded;  // the same requests for every seed, which is then that of the blocks' hashes
  prefix_trace (*make)(std::uint64_t seed);

  [[nodiscard]] std::uint64_t first_seed() const noexcept { return is_recorded ? 1 : 9001; }
  [[nodiscard]] std::size_t num_seeds() const noexcept { return is_recorded ? 8 : 6; }
};

enum class part { whole, second_half };

template <bool OfAgents, part Part>
prefix_trace recorded(std::uint64_t seed) {
  auto requests = support::read_trace(OfAgents ? PAGEDKV_TRACES "/coding_agents.jsonl"
                                               : PAGEDKV_TRACES "/conversation_trace.jsonl");
  if (Part == part::second_half) {
    requests.erase(requests.begin(), requests.begin() + static_cast<std::ptrdiff_t>(requests.size() / 2));
  }
  return replay::replayed_trace(std::move(requests), 512, seed);
}

template <std::size_t Kind>
prefix_trace generated(std::uint64_t seed) {
  auto generator = support::workload_generator{seed};
  return prefix_trace{(generator.*support::workloads[Kind].generate)(12'000)};
}

std::string generated_name(std::size_t kind) { return "generated_" + std::string{support::workloads[kind].name}; }

template <std::size_t... Kinds>
std::vector<traffic> all_traffic(std::index_sequence<Kinds...>) {
  const auto to_plot = {1000, 2000, 3000, 5000, 9139, 13'000, 18'279, 24'000, 31'774, 40'000, 50'000, 70'000, 90'000};
  const auto of_agents = {400, 500, 600, 700, 800, 1000, 1200, 1500, 2000, 2500, 3000, 4000};
  return {
      {"conversations", to_plot, true, recorded<false, part::whole>},
      {"agents", of_agents, true, recorded<true, part::whole>},
      {"late_conversations", {1000, 5000, 9139, 18'279}, true, recorded<false, part::second_half>},
      {"late_agents", {400, 600, 700, 800, 1000, 1500, 2500}, true, recorded<true, part::second_half>},
      {generated_name(Kinds), {300, 1000, 3000, 8000}, false, generated<Kinds>}...,
  };
}

/// Of all seeds. Keeps the latest only: benchmarks of one traffic follow each other.
const std::vector<std::unique_ptr<prefix_trace>>& traces_of(const traffic& wanted) {
  static auto name = std::string{};
  static auto made = std::vector<std::unique_ptr<prefix_trace>>{};
  if (name != wanted.name) {
    name.clear();
    made.clear();
    for (auto i = std::size_t{0}; i < wanted.num_seeds(); ++i) {
      made.emplace_back(new prefix_trace(wanted.make(wanted.first_seed() + i)));
    }
    name = wanted.name;
  }
  return made;
}

struct one_bit_sweep : basic_clock_sweep<1> {
  static constexpr std::string_view name = "basic_clock_sweep<1>";
  using basic_clock_sweep::basic_clock_sweep;
};

/// Whether a policy draws samples by the blocks' hashes.
template <class Policy>
constexpr bool samples = std::same_as<Policy, tiny_lfu> || std::same_as<Policy, hit_density>;

struct oracle {
  static constexpr std::string_view name = "oracle";
};
struct bound {
  static constexpr std::string_view name = "bound";
};

template <class Policy>
double ratio_of(const prefix_trace& trace, std::int32_t num_blocks) {
  if constexpr (std::same_as<Policy, oracle>) {
    return support::oracle_of(trace, num_blocks).hit_ratio();
  } else if constexpr (std::same_as<Policy, bound>) {
    return support::bound_of(trace, num_blocks).hit_ratio();
  } else {
    return support::simulate<Policy>(trace, num_blocks).hit_ratio();
  }
}

/// The mean over seeds, where there are several, its standard deviation, and the ratio of each seed.
template <class Policy>
void hit_ratio(benchmark::State& state, const traffic& of) {
  auto ratios = std::vector<double>{};
  for (auto _ : state) {
    try {
      const auto& traces = traces_of(of);
      ratios.resize(samples<Policy> || !of.is_recorded ? traces.size() : 1);
      for (auto i = std::size_t{0}; i < ratios.size(); ++i) {
        ratios[i] = ratio_of<Policy>(*traces[i], static_cast<std::int32_t>(state.range(0)));
      }
    } catch (const std::exception& e) {
      state.SkipWithError(e.what());
      return;
    }
  }
  const auto count = static_cast<double>(ratios.size());
  const auto mean = std::accumulate(ratios.begin(), ratios.end(), 0.0) / count;
  state.counters["hit_ratio"] = mean;
  if (ratios.size() > 1) {
    const auto squares = std::inner_product(ratios.begin(), ratios.end(), ratios.begin(), 0.0, std::plus{},
                                            [&](double a, double b) { return (a - mean) * (b - mean); });
    state.counters["deviation"] = std::sqrt(squares / (count - 1));
    for (auto i = std::size_t{0}; i < ratios.size(); ++i) {
      state.counters["of_seed_" + std::to_string(of.first_seed() + i)] = ratios[i];
    }
  }
  if constexpr (eviction_policy<Policy>) {
    state.counters["bytes_per_block"] = static_cast<double>(Policy{100'000}.metadata_bytes()) / 1e5;
  }
}

template <class Policies>
void register_for(Policies policies, const traffic& of, std::span<const std::int32_t> sizes) {
  bench::register_over(
      policies, "hit_ratio",
      [&of]<class Policy>(std::type_identity<Policy>, benchmark::State& state) { hit_ratio<Policy>(state, of); },
      [sizes](auto, benchmark::internal::Benchmark* benchmark) {
        benchmark->Iterations(1)->Repetitions(1);
        std::ranges::for_each(sizes, [&](std::int32_t size) { benchmark->Arg(size); });
      },
      ", " + of.name);
}

/// Sessions that say truly when they return.
void known_pauses(benchmark::State& state) {
  const auto trace = prefix_trace{support::sessions_with_known_pauses()};
  const auto num_blocks = static_cast<std::int32_t>(state.range(0));
  for (auto _ : state) {
    state.counters["true_hints"] = ratio_of<support::with_true_hints<priority>>(trace, num_blocks);
    state.counters["oracle"] = ratio_of<oracle>(trace, num_blocks);
    state.counters["no_hints"] = ratio_of<priority>(trace, num_blocks);
  }
}
BENCHMARK(known_pauses)->Arg(500)->Arg(1000)->Arg(2000)->Iterations(1)->Repetitions(1);

template <class... Policies>
auto policies_to_compare(policy_list<Policies...>) {
  return (policy_list<one_bit_sweep>{} + ... +
          std::conditional_t<evicts<Policies>, policy_list<Policies>, policy_list<>>{});
}

[[maybe_unused]] const bool hit_ratios_are_registered = [] {
  static const auto known = all_traffic(std::make_index_sequence<support::workloads.size()>{});
  for (const auto& each : known) {
    register_for(policies_to_compare(all_evictions{}), each, each.sizes);
    if (each.is_recorded) {
      register_for(policy_list<oracle, bound>{}, each, each.sizes);
    }
  }
  return true;
}();

}  // namespace
