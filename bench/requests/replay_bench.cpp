#include "../../examples/replay/contents.hpp"
#include "../../examples/support/trace.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/free_list/contiguous_runs.hpp>

#include <benchmark/benchmark.h>

#include <ctime>
#include <exception>
#include <span>
#include <vector>

// A production trace through the request tracker, one request at a time: 288,500 blocks of 512 tokens. `cpu_s` is the
// total CPU time; `ratio` is that over the time of only making and hashing the tokens, both from this run.

namespace {

using namespace pagedkv;

constexpr auto block_size = std::int32_t{512};

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

template <class... Policies>
void replay_trace(benchmark::State& state) {
  auto requests = std::vector<support::trace_request>{};
  try {
    requests = support::read_trace(PAGEDKV_TRACES "/conversation_trace.jsonl");
  } catch (const std::exception& e) {
    state.SkipWithError(e.what());
    return;
  }
  const auto baseline = hash_only(requests);
  const auto start = cpu_seconds();
  auto taken = cache_statistics{};
  for (auto _ : state) {
    auto cache = kv_cache<float16, Policies...>{
        {.block_size = block_size, .num_blocks = static_cast<std::int32_t>(state.range(0)), .head_dim = 1}};
    auto tracker = request_tracker{cache};
    auto prompts = prompt_maker{};
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto tokens = prompts.make(requests[i], i);
      const auto submitted = tracker.submit(tokens);
      if (!submitted || !cache.commit(submitted->sequence, static_cast<std::int64_t>(tokens.size())) ||
          !tracker.finish(submitted->id)) {
        state.SkipWithError("a request was refused");
        break;
      }
    }
    taken = cache.statistics();
  }
  const auto ours = (cpu_seconds() - start) / static_cast<double>(state.iterations());
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return static_cast<double>(part) / static_cast<double>(whole);
  };
  state.counters["hit_blocks"] = static_cast<double>(taken.hit_blocks);
  state.counters["hit_ratio"] = share(taken.hit_blocks, taken.prompt_blocks);
  state.counters["in_runs"] = share(taken.blocks_in_runs, taken.blocks_together);
  state.counters["blocks_per_run"] = share(taken.blocks_together, taken.runs_together);
  state.counters["cpu_s"] = ours;
  state.counters["hash_only_cpu_s"] = baseline;
  state.counters["ratio"] = ours / baseline;
}
BENCHMARK(replay_trace<single_thread>)->Arg(9'139)->Arg(18'279)->Arg(50'000)->Unit(benchmark::kMillisecond);
BENCHMARK(replay_trace<rw_lock>)->Arg(18'279)->Unit(benchmark::kMillisecond);
BENCHMARK(replay_trace<contiguous_runs>)->Arg(9'139)->Arg(18'279)->Arg(50'000)->Unit(benchmark::kMillisecond);

}  // namespace
