#include "../support/best_of.hpp"

#include <pagedkv/pagedkv.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <vector>

// Times are the best of many repetitions.

namespace {

using namespace pagedkv;

constexpr auto repetitions = 50;

/// Requests whose prompts have so many tokens, one at a time. Nothing is committed.
void submit_and_finish(benchmark::State& state) {
  constexpr auto num_requests = 4096;
  auto cache = kv_cache<>{{.block_size = 16, .num_blocks = 4096, .head_dim = 1}};
  auto tracker = request_tracker{cache};
  const auto prompt = std::vector<token>(static_cast<std::size_t>(state.range(0)), 1);
  for (auto _ : state) {
    state.counters["ns"] = bench::best_seconds(repetitions,
                                               [&] {
                                                 for (auto i = 0; i < num_requests; ++i) {
                                                   const auto submitted = tracker.submit(prompt);
                                                   if (!submitted || !tracker.finish(submitted->id)) {
                                                     state.SkipWithError("a request was refused");
                                                   }
                                                 }
                                               }) *
                           1e9 / num_requests;
  }
}
BENCHMARK(submit_and_finish)->ArgName("tokens")->Arg(3)->Arg(160)->Iterations(1);

void append_through_the_tracker(benchmark::State& state) {
  constexpr auto num_tokens = 8192;
  auto cache = kv_cache<>{{.block_size = num_tokens + 1, .num_blocks = 1, .head_dim = 1}};
  auto tracker = request_tracker{cache};
  const auto prompt = std::vector<token>{0};
  auto id = tracker.submit(prompt)->id;
  for (auto _ : state) {
    state.counters["ns"] = bench::best_seconds(
                               repetitions,
                               [&] {
                                 static_cast<void>(tracker.finish(id));
                                 id = tracker.submit(prompt)->id;
                               },
                               [&] {
                                 for (auto i = token{0}; i < num_tokens; ++i) {
                                   if (!tracker.append(id, i)) {
                                     state.SkipWithError("a token did not fit");
                                   }
                                   benchmark::ClobberMemory();
                                 }
                               }) *
                           1e9 / num_tokens;
  }
}
BENCHMARK(append_through_the_tracker)->Iterations(1);

}  // namespace
