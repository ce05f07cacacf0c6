#include "comparison.hpp"

#include "../support/foresight.hpp"
#include "options.hpp"
#include "policies.hpp"
#include "progress.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <ctime>
#include <future>

namespace pagedkv::replay {

namespace {

using simulation = support::simulation_result (*)(const support::prefix_trace&, std::int32_t num_blocks, progress&);

/// More blocks than the trace has would only take memory.
[[nodiscard]] std::int32_t usable_blocks(const support::prefix_trace& trace, std::int32_t num_blocks) {
  const auto most = trace.num_nodes() + support::simulation_options{}.num_private;
  return static_cast<std::int32_t>(std::min(static_cast<std::size_t>(num_blocks), most));
}

template <eviction_policy Policy>
[[nodiscard]] support::simulation_result simulate_shown(const support::prefix_trace& trace, std::int32_t num_blocks,
                                                        progress& shown) {
  const auto usable = usable_blocks(trace, num_blocks);
  auto simulator = support::chain_simulator<Policy>{trace, usable, {}};
  for (const auto& request : trace.requests()) {
    simulator.run(request);
    shown.advance();
  }
  return simulator.result();
}

template <auto Compute>
[[nodiscard]] support::simulation_result shown_when_done(const support::prefix_trace& trace, std::int32_t num_blocks,
                                                         progress& shown) {
  const auto result = Compute(trace, num_blocks, {});
  for (auto i = trace.requests().size(); i > 0; --i) {
    shown.advance();
  }
  return result;
}

[[nodiscard]] simulation simulation_of(std::string_view policy) {
  return with_policy(all_evictions{}, policy,
                     []<class Eviction>(std::type_identity<Eviction>) { return simulation{simulate_shown<Eviction>}; });
}

/// Starts at a size that fits the longest request.
[[nodiscard]] std::vector<std::int32_t> default_capacities(const support::prefix_trace& trace) {
  constexpr auto num_capacities = 12;
  auto longest = std::size_t{0};
  for (const auto& request : trace.requests()) {
    longest = std::max(longest, request.nodes.size());
  }
  const auto needed = static_cast<double>(longest + support::simulation_options{}.num_private);
  const auto largest = static_cast<double>(std::max<std::size_t>(1, trace.num_nodes()));
  const auto smallest = std::min(largest, std::max(largest * 0.005, needed));
  auto capacities = std::vector<std::int32_t>{};
  for (auto i = 0; i < num_capacities; ++i) {
    const auto blocks = smallest * std::pow(largest / smallest, static_cast<double>(i) / (num_capacities - 1));
    capacities.push_back(static_cast<std::int32_t>(std::lround(blocks)));
  }
  return capacities;
}

void sort_and_deduplicate(std::vector<std::int32_t>& capacities) {
  std::ranges::sort(capacities);
  capacities.erase(std::unique(capacities.begin(), capacities.end()), capacities.end());
}

struct job {
  simulation simulate;
  std::int32_t num_blocks;
  support::simulation_result* result;
};

/// Starts with the largest pools of each policy, which take the longest.
[[nodiscard]] std::vector<job> jobs_of(comparison& made) {
  auto jobs = std::vector<job>{};
  const auto add = [&](comparison::row& row, simulation simulate) {
    row.results.resize(made.capacities.size());
    for (auto i = made.capacities.size(); i-- > 0;) {
      jobs.push_back({simulate, made.capacities[i], &row.results[i]});
    }
  };
  add(made.bound, shown_when_done<support::bound_of>);
  add(made.oracle, shown_when_done<support::oracle_of>);
  for (auto& row : made.policies) {
    add(row, simulation_of(row.policy));
  }
  return jobs;
}

void run_jobs(const std::vector<job>& jobs, const support::prefix_trace& trace, std::int32_t num_threads) {
  auto shown = progress{jobs.size() * trace.requests().size()};
  auto next = std::atomic<std::size_t>{0};
  const auto work = [&] {
    for (auto i = next.fetch_add(1); i < jobs.size(); i = next.fetch_add(1)) {
      *jobs[i].result = jobs[i].simulate(trace, jobs[i].num_blocks, shown);
    }
  };
  auto workers = std::vector<std::future<void>>{};
  for (auto i = 1; i < num_threads; ++i) {
    workers.push_back(std::async(std::launch::async, work));
  }
  work();
  for (auto& each : workers) {
    each.get();
  }
}

}  // namespace

comparison compare(const support::prefix_trace& trace, const options& chosen) {
  auto made = comparison{};
  made.num_requests = trace.requests().size();
  made.num_references = trace.num_references();
  made.num_distinct_blocks = trace.num_nodes();
  made.capacities = chosen.blocks.empty() ? default_capacities(trace) : chosen.blocks;
  sort_and_deduplicate(made.capacities);
  for (const auto& policy : chosen.compared) {
    if (std::ranges::find(made.policies, policy, &comparison::row::policy) == made.policies.end()) {
      made.policies.push_back({policy, {}});
    }
  }
  made.bound.policy = "bound";
  made.oracle.policy = "oracle";

  const auto start = std::chrono::steady_clock::now();
  const auto cpu_start = std::clock();
  run_jobs(jobs_of(made), trace, chosen.num_threads);
  made.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  made.cpu_seconds = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  return made;
}

}  // namespace pagedkv::replay
