#include "../../examples/replay/contents.hpp"
#include "../../examples/support/trace.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/free_list/all.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <iterator>
#include <span>
#include <vector>

// Production traces through the request tracker, one request at a time; the conversations have 288,500 blocks of 512
// tokens. `cpu_s` is the total CPU time; `ratio` is that over the time of only making and hashing the tokens, both from
// this run. `late_…` is of the second half of the requests.

namespace {

using namespace pagedkv;

constexpr auto block_size = std::int32_t{512};
constexpr auto conversations = PAGEDKV_TRACES "/conversation_trace.jsonl";
constexpr auto agents = PAGEDKV_TRACES "/coding_agents.jsonl";

class prompt_maker {
 public:
  [[nodiscard]] std::span<const token> make(const support::trace_request& request, std::size_t index) {
    constexpr auto size = static_cast<std::size_t>(block_size);
    tokens_.resize(request.blocks.size() * size + 1);
    for (std::size_t i = 0; i < request.blocks.size(); ++i) {
      replay::fill_tokens(request.blocks[i], std::span{tokens_}.subspan(i * size, size));
    }
    tokens_.back() = static_cast<token>(index);
    return tokens_;
  }

 private:
  std::vector<token> tokens_;
};

[[nodiscard]] double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

[[nodiscard]] double hash_only(const std::vector<support::trace_request>& requests) {
  const auto start = cpu_seconds();
  auto prompts = prompt_maker{};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto tokens = prompts.make(requests[i], i);
    auto last = std::uint64_t{0};
    for (std::size_t first = 0; first + block_size <= tokens.size(); first += block_size) {
      last = xxh3_hash::hash(last, tokens.subspan(first, block_size));
    }
    benchmark::DoNotOptimize(last);
  }
  return cpu_seconds() - start;
}

[[nodiscard]] double share(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

/// New blocks of requests that take several at once, and those of them that whole octets could hold.
struct new_blocks {
  std::int64_t together = 0;
  std::int64_t in_groups = 0;

  void count(std::int64_t num_blocks) {
    together += num_blocks > 1 ? num_blocks : 0;
    in_groups += num_blocks / 8 * 8;
  }
};

struct replayed {
  cache_statistics all;
  cache_statistics first_half;
  new_blocks second_half;
};

template <class Cache>
[[nodiscard]] replayed replay_all(Cache& cache, const std::vector<support::trace_request>& requests) {
  auto tracker = request_tracker{cache};
  auto prompts = prompt_maker{};
  auto made = replayed{};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (i == requests.size() / 2) {
      made.first_half = cache.statistics();
    }
    const auto tokens = prompts.make(requests[i], i);
    const auto submitted = tracker.submit(tokens).value();
    cache.commit(submitted.sequence, std::ssize(tokens)).value();
    tracker.finish(submitted.id).value();
    if (i >= requests.size() / 2) {
      made.second_half.count((std::ssize(tokens) - submitted.num_cached_tokens + block_size - 1) / block_size);
    }
  }
  made.all = cache.statistics();
  return made;
}

/// Reads a trace, or skips the benchmark.
[[nodiscard]] std::vector<support::trace_request> requests_of(benchmark::State& state, const char* path) {
  try {
    return support::read_trace(path);
  } catch (const std::exception& e) {
    state.SkipWithError(e.what());
    return {};
  }
}

[[nodiscard]] cache_config pool_of(std::int64_t num_blocks) {
  return {.block_size = block_size, .num_blocks = static_cast<std::int32_t>(num_blocks), .head_dim = 1};
}

template <class... Policies>
void replay_on(benchmark::State& state, const char* path) {
  const auto requests = requests_of(state, path);
  const auto baseline = hash_only(requests);
  const auto start = cpu_seconds();
  auto made = replayed{};
  for (auto _ : state) {
    auto cache = kv_cache<float16, Policies...>{pool_of(state.range(0))};
    made = replay_all(cache, requests);
  }
  const auto ours = (cpu_seconds() - start) / static_cast<double>(state.iterations());
  const auto& [all, first_half, second_half] = made;
  state.counters["hit_blocks"] = static_cast<double>(all.hit_blocks);
  state.counters["hit_ratio"] = share(all.hit_blocks, all.prompt_blocks);
  state.counters["in_runs"] = share(all.blocks_in_runs, all.blocks_together);
  state.counters["blocks_per_run"] = share(all.blocks_together, all.runs_together);
  state.counters["late_in_runs"] =
      share(all.blocks_in_runs - first_half.blocks_in_runs, all.blocks_together - first_half.blocks_together);
  state.counters["late_at_most"] = share(second_half.in_groups, second_half.together);
  state.counters["cpu_s"] = ours;
  state.counters["hash_only_cpu_s"] = baseline;
  state.counters["ratio"] = ours / baseline;
}

template <class... Policies>
void replay_trace(benchmark::State& state) {
  replay_on<Policies...>(state, conversations);
}
BENCHMARK(replay_trace<single_thread>)->Arg(9'139)->Arg(18'279)->Arg(50'000)->Unit(benchmark::kMillisecond);
BENCHMARK(replay_trace<rw_lock>)->Arg(18'279)->Unit(benchmark::kMillisecond);
BENCHMARK(replay_trace<contiguous_runs>)->Arg(9'139)->Arg(18'279)->Arg(50'000)->Unit(benchmark::kMillisecond);

template <class... Policies>
void replay_agents(benchmark::State& state) {
  replay_on<Policies...>(state, agents);
}
BENCHMARK(replay_agents<single_thread>)->Arg(1'500)->Arg(2'500)->Unit(benchmark::kMillisecond);
BENCHMARK(replay_agents<contiguous_runs>)->Arg(1'500)->Arg(2'500)->Unit(benchmark::kMillisecond);

/// Host memory has ten times the device's blocks, and gets what is committed. Beside it, a device as large as that.
void replay_with_tier(benchmark::State& state, const char* path) {
  const auto requests = requests_of(state, path);
  const auto num_records = static_cast<std::int32_t>(10 * state.range(0));
  auto taken = cache_statistics{};
  auto of_host = tier_statistics{};
  auto of_large = cache_statistics{};
  for (auto _ : state) {
    auto tiers = tier_config{};
    tiers.write = write_policy::through;
    tiers.model = "replay";
    auto cache = tiered_cache<float16>{pool_of(state.range(0)), tiers, {num_records}};
    taken = replay_all(cache, requests).all;
    of_host = cache.tier(0);
    auto large = kv_cache<float16>{pool_of(num_records)};
    of_large = replay_all(large, requests).all;
  }
  state.counters["hit_ratio"] = share(taken.hit_blocks + of_host.hit_blocks, taken.prompt_blocks);
  state.counters["on_device"] = share(taken.hit_blocks, taken.prompt_blocks);
  state.counters["of_large_device"] = share(of_large.hit_blocks, of_large.prompt_blocks);
}
BENCHMARK_CAPTURE(replay_with_tier, conversations, conversations)->Arg(1'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(replay_with_tier, agents, agents)->Arg(2'000)->Unit(benchmark::kMillisecond);

}  // namespace
