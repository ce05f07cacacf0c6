// Routes a trace over several workers, with and without an index of what each of them has cached. See docs/router.md.

#include "../replay/options.hpp"
#include "routing.hpp"

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>

int main(int argc, char** argv) {
  auto chosen = pagedkv::router::setting{};
  auto source = pagedkv::replay::options{};
  auto app =
      CLI::App{"Routes requests over workers that share no memory, and prints how much of their prompts was cached."};
  app.add_option("--trace", source.trace, "a trace in Mooncake's format; a generated workload without it")
      ->check(CLI::ExistingFile);
  constexpr auto most = std::numeric_limits<std::int32_t>::max();
  app.add_option("--limit", source.limit, "requests to read")->check(CLI::Range(1, most));
  app.add_option("--workers", chosen.num_workers, "number of workers")
      ->check(CLI::Range(1, 1'023))
      ->capture_default_str();
  app.add_option("--blocks", chosen.num_blocks, "blocks of each worker; a tenth of the workload's over all by default")
      ->check(CLI::Range(1, most / 4));  // a worker's queue has four events for each
  app.add_option("--keys", chosen.keys, "names of blocks: cache, dynamo or llm-d")
      ->check(CLI::IsMember({"cache", "dynamo", "llm-d"}))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    const auto work = pagedkv::replay::make_workload(source);
    if (chosen.num_blocks == 0) {
      const auto tenth = work.num_distinct_blocks / 10 / chosen.num_workers;
      chosen.num_blocks = static_cast<std::int32_t>(
          std::max(tenth, static_cast<std::int64_t>(work.longest_prompt) + 1));
    }
    fmt::print("{} requests, {} workers of {} blocks\n\n", work.requests.size(), chosen.num_workers, chosen.num_blocks);
    fmt::print("{:<10} {:>9} {:>9} {:>10}\n", "routing", "hit ratio", "refused", "imbalance");
    const auto row = [](const char* name, const pagedkv::router::outcome& done) {
      fmt::print("{:<10} {:>9.4f} {:>9} {:>10.2f}\n", name, done.hit_ratio(), done.num_refused, done.imbalance);
    };
    row("in turn", route_in_turn(work, chosen));
    row("by index", route_by_index(work, chosen));
    return 0;
  } catch (const std::exception& problem) {
    fmt::print(stderr, "router: {}\n", problem.what());
    return 1;
  }
}
