#include "options.hpp"

#include "policies.hpp"

#include <CLI/CLI.hpp>

namespace pagedkv::replay {

parsed_options parse_options(int argc, const char* const* argv) {
  auto parsed = parsed_options{};
  auto& chosen = parsed.chosen;
  auto app = CLI::App{"Replays requests through the paged key/value cache and reports what it did."};
  const auto positive = CLI::Range(1, std::numeric_limits<std::int32_t>::max());

  app.add_option("--trace", chosen.trace,
                 "JSON lines with timestamp (ms), input_length, output_length and hash_ids; without it, a workload of "
                 "conversations of several turns is generated");
  app.add_option("--block-size", chosen.block_size, "tokens in a block; 512 for a trace, else 16")->check(positive);
  app.add_option("--blocks", chosen.num_blocks, "blocks in the pool; a tenth of the workload's distinct ones")
      ->check(positive);
  app.add_option("--eviction", chosen.eviction, "what is evicted first")
      ->check(CLI::IsMember(names_of(all_evictions{})))
      ->capture_default_str();
  app.add_option("--locking", chosen.locking, "how threads are kept apart")
      ->check(CLI::IsMember(names_of(all_lockings{})))
      ->capture_default_str();
  app.add_option("--element", chosen.element, "how K and V are stored")
      ->check(CLI::IsMember(names_of(all_elements{})))
      ->capture_default_str();
  app.add_option("--threads", chosen.num_threads, "threads that serve requests")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--concurrency", chosen.concurrency,
                 "requests alive at once; the oldest one is finished when one more arrives")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_flag("--decode", chosen.decode, "also append the output tokens, one by one");
  app.add_option("--limit", chosen.limit, "replay only the first requests")->check(positive);
  app.add_option("--json", chosen.json, "write the report to this file, or to standard output if it is -");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    parsed.exit_status = app.exit(e) == 0 ? 0 : 2;
  }
  return parsed;
}

}  // namespace pagedkv::replay
