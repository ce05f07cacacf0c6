#include "../support/best_of.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>

#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

// Times are the best of many repetitions.

namespace step_bench {

using namespace pagedkv;

constexpr auto repetitions = 200;

/// A step during which one sequence of 16 blocks ends, in pools of different sizes; `ratio` is the time over that of
/// the smallest pool in the same run.
template <class Locking, class Eviction>
void retire_a_step(benchmark::State& state) {
  const auto nanoseconds = [&](std::int32_t num_blocks) {
    auto cache = kv_cache<float16, Locking, Eviction>{
        {.block_size = 1, .num_blocks = num_blocks, .num_kv_heads = 1, .head_dim = 1, .max_sequences = 8}};
    auto step = step_id{};
    return 1e9 * bench::best_seconds(
                     repetitions,
                     [&] {
                       const auto id = cache.create_sequence(std::vector<token>(16, 1))->id;
                       step = cache.begin_step(std::array{id}).value();
                       static_cast<void>(cache.release(id));
                     },
                     [&] { static_cast<void>(cache.retire_step(step)); });
  };
  for (auto _ : state) {
    const auto smallest = nanoseconds(std::int32_t{1} << 12);
    const auto ns = nanoseconds(static_cast<std::int32_t>(state.range(0)));
    state.counters["ns"] = ns;
    state.counters["ratio"] = ns / smallest;
  }
}
BENCHMARK(retire_a_step<single_thread, lru>)->RangeMultiplier(32)->Range(1 << 12, 1 << 22)->Iterations(1);
BENCHMARK(retire_a_step<lock_free, clock_sweep>)->RangeMultiplier(32)->Range(1 << 12, 1 << 22)->Iterations(1);

/// The gain of releasing sequences of 1,024 blocks, of which a quarter is shared by all; `ns` a block, and over a sum
/// of as many numbers.
void gain_of_releasing(benchmark::State& state) {
  constexpr auto num_blocks = 1024;
  auto cache = kv_cache<>{{.block_size = 16, .num_blocks = 1 << 17, .num_kv_heads = 1, .head_dim = 1}};
  auto ids = std::vector<sequence_id>{};
  for (auto i = token{0}; i < state.range(0); ++i) {
    auto prompt = std::vector<token>(16 * num_blocks);
    std::iota(prompt.begin(), prompt.end(), token{0});
    prompt[4 * num_blocks] = i + 1'000'000;
    ids.push_back(cache.create_sequence(prompt)->id);
    static_cast<void>(cache.commit(ids.back(), 16 * num_blocks));
  }
  const auto all = static_cast<double>(num_blocks) * static_cast<double>(ids.size());
  for (auto _ : state) {
    const auto seconds = bench::best_seconds(repetitions, [&] {
      auto gain = cache.gain_of_releasing(ids);
      benchmark::DoNotOptimize(gain);
    });
    state.counters["ns"] = seconds * 1e9 / all;
  }
}
BENCHMARK(gain_of_releasing)->Arg(1)->Arg(8)->Iterations(1);

}  // namespace step_bench
