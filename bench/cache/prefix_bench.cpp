#include "../support/best_of.hpp"
#include "../support/turn_over.hpp"

#include <pagedkv/pagedkv.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

// Times are the best of many repetitions; `ratio` is the time over that of only hashing the blocks, both from this run.

namespace prefix_bench {

using namespace pagedkv;

constexpr auto num_tokens = std::int32_t{131'072};
constexpr auto repetitions = 50;
constexpr auto first_prompt = std::int64_t{50'000};  // after those that replace a pool's contents

/// A long prompt, all of it cached. The pool holds nothing else, or twelve such prompts, and its contents have been
/// replaced as often as the second argument says. Between repetitions, the other half's work leaves the machine's
/// caches cold.
void look_up_cached_prompt(benchmark::State& state) {
  const auto block_size = static_cast<std::int32_t>(state.range(0));
  const auto turnovers = state.range(1);
  const auto num_blocks = num_tokens / block_size;
  auto cache = kv_cache<>{
      {.block_size = block_size, .num_blocks = turnovers == 0 ? num_blocks + 1 : 12 * num_blocks, .head_dim = 1}};
  bench::turn_over(state, cache, turnovers);
  auto prompt = std::vector<token>(num_tokens + 1);
  std::iota(prompt.begin(), prompt.end(), 0);
  if (!bench::cache_prompt(cache, prompt)) {
    state.SkipWithError("the prompt was refused");
  }

  auto find = 0.0;
  auto create = 0.0;
  auto hash = 0.0;
  for (auto _ : state) {
    find = bench::best_seconds(repetitions, [&] {
      if (cache.find_prefix(prompt) != num_tokens) {
        state.SkipWithError("the prompt is not cached");
      }
    });
    auto id = sequence_id{};
    create = bench::best_seconds(
        repetitions, [&] { static_cast<void>(cache.release(id)); }, [&] { id = cache.create_sequence(prompt)->id; });
    static_cast<void>(cache.release(id));
    hash = bench::hash_seconds(repetitions, prompt, static_cast<std::size_t>(block_size));
  }
  state.counters["find_us"] = find * 1e6;
  state.counters["create_us"] = create * 1e6;
  state.counters["hash_us"] = hash * 1e6;
  state.counters["ratio"] = find / hash;
  state.counters["create_ratio"] = create / hash;
}
BENCHMARK(look_up_cached_prompt)
    ->ArgNames({"block_size", "turnovers"})
    ->ArgsProduct({{16, 512}, {0, 1, 10}})
    ->Iterations(1);

/// Publishes a long new prompt in a full pool whose contents have been replaced so many times.
void commit_new_prompt(benchmark::State& state) {
  const auto block_size = static_cast<std::int32_t>(state.range(0));
  auto cache = kv_cache<>{{.block_size = block_size, .num_blocks = 12 * num_tokens / block_size, .head_dim = 1}};
  bench::turn_over(state, cache, state.range(1));
  auto prompts = bench::new_prompts(num_tokens, first_prompt);
  auto id = sequence_id{};
  auto commit = 0.0;
  auto hash = 0.0;
  for (auto _ : state) {
    commit = bench::best_seconds(
        9,
        [&] {
          static_cast<void>(cache.release(id));
          id = cache.create_sequence(prompts.next())->id;
        },
        [&] {
          if (!cache.commit(id, num_tokens)) {
            state.SkipWithError("the prompt cannot be committed");
          }
        });
    hash = bench::hash_seconds(repetitions, prompts.next(), static_cast<std::size_t>(block_size));
  }
  state.counters["commit_us"] = commit * 1e6;
  state.counters["hash_us"] = hash * 1e6;
  state.counters["ratio"] = commit / hash;
}
BENCHMARK(commit_new_prompt)
    ->ArgNames({"block_size", "turnovers"})
    ->ArgsProduct({{16, 512}, {1, 10}})
    ->Iterations(1);

/// Evicts a thousand blocks for a prompt, which is then published and released.
void replace_cached_blocks(benchmark::State& state) {
  constexpr auto num_blocks = 100'000;
  constexpr auto num_replaced = 1'000;
  const auto block_size = static_cast<std::int32_t>(state.range(0));
  auto cache = kv_cache<>{{.block_size = block_size, .num_blocks = num_blocks, .head_dim = 1}};
  bench::turn_over(state, cache, state.range(1));
  auto prompts = bench::new_prompts(static_cast<std::size_t>(num_replaced * block_size), first_prompt);
  auto whole = 1e9;
  auto hash = 0.0;
  for (auto _ : state) {
    for (auto i = 0; i < repetitions; ++i) {
      const auto& prompt = prompts.next();
      whole = std::min(whole, bench::best_seconds(1, [&] {
                         if (!bench::cache_prompt(cache, prompt)) {
                           state.SkipWithError("a prompt was refused");
                         }
                       }));
    }
    hash = bench::hash_seconds(repetitions, prompts.next(), static_cast<std::size_t>(block_size));
  }
  state.counters["us"] = whole * 1e6;
  state.counters["hash_us"] = hash * 1e6;
  state.counters["ratio"] = whole / hash;
}
BENCHMARK(replace_cached_blocks)
    ->ArgNames({"block_size", "turnovers"})
    ->ArgsProduct({{16, 512}, {1, 10}})
    ->Iterations(1);

}  // namespace prefix_bench
