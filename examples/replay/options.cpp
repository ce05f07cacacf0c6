#include "options.hpp"

#include "policies.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <thread>

namespace pagedkv::replay {

namespace {

constexpr auto every_policy = "all";

[[nodiscard]] std::vector<std::string> comparable_names() {
  auto names = names_of(all_evictions{});
  names.push_back(every_policy);
  return names;
}

[[nodiscard]] std::int32_t num_cores() {
  return static_cast<std::int32_t>(std::max(1U, std::thread::hardware_concurrency()));
}

/// Sets options that depend on other options.
void complete(options& chosen, const std::optional<std::int32_t>& num_threads) {
  if (std::ranges::find(chosen.compared, every_policy) != chosen.compared.end()) {
    chosen.compared = names_of(all_evictions{});
  }
  chosen.num_threads = num_threads.value_or(chosen.compared.empty() ? 1 : num_cores());
}

}  // namespace

std::string options::trace_name() const {
  return trace.empty() ? "generated requests: conversations, shared documents and agents" : std::filesystem::path{trace}.filename().string();
}

parsed_options parse_options(int argc, const char* const* argv) {
  auto parsed = parsed_options{};
  auto& chosen = parsed.chosen;
  auto num_threads = std::optional<std::int32_t>{};
  auto app = CLI::App{"Replays requests through the paged key/value cache and reports what it did."};
  const auto positive = CLI::Range(1, std::numeric_limits<std::int32_t>::max());
  const auto not_empty = [](const std::string& name) { return std::string(name.empty() ? "no file name" : ""); };

  app.add_option("--trace", chosen.trace,
                 "JSON lines with timestamp (ms), input_length, output_length and hash_ids; without it, a workload of "
                 "conversations, shared documents and agents is generated")
      ->check(not_empty);
  app.add_option(
         "--blocks", chosen.blocks,
         "blocks in the pool; a tenth of the workload's distinct ones. To compare, a list of capacities; twelve from "
         "0.5 % to 100 %")
      ->delimiter(',')
      ->check(positive);
  auto* const compare =
      app.add_option("--compare", chosen.compared,
                     "simulate these eviction policies side by side, and with foresight, instead of replaying with one")
          ->expected(0, -1)
          ->delimiter(',')
          ->default_str(every_policy)
          ->check(CLI::IsMember(comparable_names()));
  app.add_option("--plot", chosen.plot,
                 "draw the comparison: gnuplot makes PREFIX.svg and PREFIX.png of PREFIX.gnuplot")
      ->type_name("PREFIX")
      ->needs(compare);
  auto* const block_size =
      app.add_option("--block-size", chosen.block_size, "tokens in a block; 512 for a trace, else 16")->check(positive);
  auto* const eviction = app.add_option("--eviction", chosen.eviction, "what is evicted first")
                             ->check(CLI::IsMember(names_of(all_evictions{})))
                             ->capture_default_str();
  auto* const locking = app.add_option("--locking", chosen.locking, "how threads are kept apart")
                            ->check(CLI::IsMember(names_of(all_lockings{})))
                            ->capture_default_str();
  auto* const element = app.add_option("--element", chosen.element,
                                       "how K and V are stored; all but float16 need --locking single_thread")
                            ->check(CLI::IsMember(names_of(all_elements{})))
                            ->capture_default_str();
  auto* const free_list = app.add_option("--free-list", chosen.free_list,
                                         "which free blocks are taken; contiguous_runs needs one thread and float16")
                              ->check(CLI::IsMember(names_of(all_free_lists{})))
                              ->capture_default_str();
  app.add_option("--hash-seed", chosen.hash_seed, "of the blocks' hashes, from which some policies draw samples")
      ->check(CLI::Range(std::uint64_t{1}, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
  app.add_option("--threads", num_threads, "threads that serve requests, 1; or that compare, one for each core")
      ->check(CLI::Range(1, 1024));
  auto* const concurrency = app.add_option("--concurrency", chosen.concurrency,
                                           "requests alive at once; the oldest one is finished when one more arrives")
                                ->check(CLI::Range(1, 1'000'000))
                                ->capture_default_str();
  auto* const decode = app.add_flag("--decode", chosen.decode, "also append the output tokens, one by one");
  app.add_option("--limit", chosen.limit, "replay only the first requests")->check(positive);
  app.add_option("--json", chosen.json, "write the report to this file, or to standard output if it is -")
      ->check(not_empty);
  auto* const log =
      app.add_option("--log", chosen.log,
                     "write what the cache does, a line for each event, to this file, or to standard error if it is -")
          ->check(not_empty);
  auto* const publish =
      app.add_option("--publish", chosen.publish,
                     "publish which prefixes are cached, in vLLM's format, at this endpoint, such as tcp://*:5557")
          ->check(not_empty);
  auto* const host_blocks =
      app.add_option("--host-blocks", chosen.host_blocks,
                     "records in host memory, which keep what the device evicts; with one thread and float16")
          ->check(positive);
  auto* const file =
      app.add_option("--file", chosen.file, "a file behind host memory, and its bytes, such as /disk/kv:64G")
          ->type_name("PATH:SIZE")
          ->check(not_empty)
          ->needs(host_blocks);
  auto* const remote =
      app.add_option("--remote", chosen.remote, "a Valkey or Redis store behind that, such as redis://127.0.0.1:6379")
          ->type_name("URL")
          ->check(not_empty)
          ->needs(host_blocks);
  auto* const write = app.add_option("--write-policy", chosen.write_policy, "when blocks are written to tiers")
                          ->check(CLI::IsMember({"on_eviction", "through", "through_hits"}))
                          ->capture_default_str()
                          ->needs(host_blocks);
  auto* const exclusive =
      app.add_flag("--exclusive", chosen.exclusive, "host memory gives up what the device has")->needs(host_blocks);
  auto* const prefetch =
      app.add_option("--prefetch", chosen.prefetch,
                     "what a request waits for: best_effort, complete, or a deadline in milliseconds")
          ->check(CLI::IsMember({"best_effort", "complete"}) | CLI::Range(0, 60'000))
          ->capture_default_str()
          ->needs(host_blocks);
  for (auto* const of_one_replay : {host_blocks, file, remote, write, exclusive, prefetch, block_size, eviction,
                                    locking, element, free_list, concurrency, decode, log, publish}) {
    of_one_replay->excludes(compare);
  }

  try {
    app.parse(argc, argv);
    complete(chosen, num_threads);
  } catch (const CLI::ParseError& e) {
    parsed.exit_status = app.exit(e) == 0 ? 0 : 2;
  }
  return parsed;
}

}  // namespace pagedkv::replay
