// Replays a trace, or generated requests, through a cache, or compares eviction policies. `--help` lists the options.
// See README.md.

#include "../support/foresight.hpp"
#include "comparison.hpp"
#include "comparison_report.hpp"
#include "contents.hpp"
#include "engine.hpp"
#include "log_file.hpp"
#include "publication.hpp"
#include "options.hpp"
#include "plot.hpp"
#include "progress.hpp"
#include "replay.hpp"
#include "replayed_trace.hpp"
#include "report.hpp"
#include "workload.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <limits>

namespace pagedkv::replay {

namespace {

constexpr auto status_of_bad_input = 2;
constexpr auto status_without_plot = 3;

/// A tenth of the workload's distinct blocks, so that blocks are evicted, but enough for the longest prompt and a
/// token.
[[nodiscard]] std::int32_t default_num_blocks(const workload& work) {
  const auto tenth = (work.num_distinct_blocks + 9) / 10;
  return static_cast<std::int32_t>(std::max(tenth, static_cast<std::int64_t>(work.longest_prompt) + 1));
}

/// Of the device and host memory; all that there can be, if there are tiers behind these.
[[nodiscard]] std::int32_t num_blocks_of_all_tiers(const workload& work, const options& chosen) {
  const auto kept = std::int64_t{chosen.blocks.front()} + chosen.host_blocks;
  const auto slower = chosen.file.empty() && chosen.remote.empty() ? 0 : work.num_distinct_blocks;
  return static_cast<std::int32_t>(
      std::min(kept + slower, std::int64_t{std::numeric_limits<std::int32_t>::max()}));
}

[[nodiscard]] cache_config config_for(const workload& work, const options& chosen) {
  auto config = cache_config{};
  config.block_size = work.block_size;
  config.num_blocks = chosen.blocks.front();
  config.head_dim = static_cast<std::int32_t>(row_dim);
  config.max_sequences = chosen.concurrency;
  config.hash_seed = chosen.hash_seed;
  return config;
}

/// A full disk shows only after everything is written.
void check_written(std::ostream& json, const options& chosen) {
  if (!json.flush()) {
    throw option_error("--json " + chosen.json + ": cannot be written");
  }
}

void report(const outcome& found, const workload& work, const options& chosen, std::ofstream& json) {
  if (chosen.json == "-") {
    write_json(std::cout, found, work, chosen);
    check_written(std::cout, chosen);
  } else {
    print_table(found, work, chosen);
    if (json.is_open()) {
      write_json(json, found, work, chosen);
      check_written(json, chosen);
    }
  }
  for (const auto& sentence : found.violations) {
    fmt::print(stderr, "violation: {}\n", sentence);
  }
  if (found.blocks_in_use_at_end() != 0) {
    fmt::print(stderr, "leak: {} blocks are in use at the end\n", found.blocks_in_use_at_end());
  }
}

[[nodiscard]] int run_replay(options chosen, std::ofstream& json) {
  if (chosen.blocks.size() > 1) {
    throw option_error("--blocks: a replay has one capacity; several are for --compare");
  }
  const auto work = make_workload(chosen);
  if (chosen.blocks.empty()) {
    chosen.blocks.push_back(default_num_blocks(work));
  }
  auto log = log_file{chosen.log};
  const auto config = config_for(work, chosen);
  const auto published = publication{chosen.publish, config.block_size};
  const auto served = make_engine(chosen, config, {log.log(), published.queues()});
  auto found = outcome{};
  {
    auto shown = progress{work.requests.size()};
    found = run(*served, work, chosen, shown);
  }
  found.bound_hits =
      support::bound_of(support::prefix_trace{work.requests}, num_blocks_of_all_tiers(work, chosen)).hits;
  log.flush();
  report(found, work, chosen, json);
  return found.good() ? EXIT_SUCCESS : EXIT_FAILURE;
}

[[nodiscard]] int run_comparison(const options& chosen, std::ofstream& json) {
  const auto work = make_workload(chosen);
  const auto made = compare(replayed_trace(work.requests, work.block_size, chosen.hash_seed), chosen);
  if (chosen.json == "-") {
    write_json(std::cout, made, chosen);
    check_written(std::cout, chosen);
  } else {
    print_table(made, chosen);
    if (json.is_open()) {
      write_json(json, made, chosen);
      check_written(json, chosen);
    }
  }
  if (!chosen.plot.empty()) {
    try {
      draw_plot(made, chosen.trace_name(), chosen.plot);
    } catch (const plot_error& e) {
      fmt::print(stderr, "replay: {}\n", e.what());
      return status_without_plot;
    }
  }
  return EXIT_SUCCESS;
}

[[nodiscard]] int run_main(const options& chosen) {
  auto json = std::ofstream{};
  if (!chosen.json.empty() && chosen.json != "-") {
    json.open(chosen.json);
    if (!json) {
      throw option_error("--json " + chosen.json + ": cannot be written");
    }
  }
  return chosen.compared.empty() ? run_replay(chosen, json) : run_comparison(chosen, json);
}

}  // namespace

}  // namespace pagedkv::replay

int main(int argc, char** argv) {
  const auto parsed = pagedkv::replay::parse_options(argc, argv);
  if (parsed.exit_status) {
    return *parsed.exit_status;
  }
  try {
    return pagedkv::replay::run_main(parsed.chosen);
  } catch (const std::exception& e) {
    fmt::print(stderr, "replay: {}\n", e.what());
    return pagedkv::replay::status_of_bad_input;
  }
}
