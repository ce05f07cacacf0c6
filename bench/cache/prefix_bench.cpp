#include "../support/best_of.hpp"

#include <pagedkv/pagedkv.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

// Times are the best of many repetitions; `ratio` is ours over that of merely hashing the blocks, both from this run.

namespace {

using namespace pagedkv;

constexpr auto num_tokens = std::int32_t{131'072};
constexpr auto repetitions = 50;

/// A long prompt, all of it cached. Between repetitions the caches of the machine are as the other half left them.
void look_up_cached_prompt(benchmark::State& state) {
  const auto block_size = static_cast<std::int32_t>(state.range(0));
  auto cache = kv_cache<>{{.block_size = block_size, .num_blocks = num_tokens / block_size + 1, .head_dim = 1}};
  auto prompt = std::vector<token>(num_tokens + 1);
  std::iota(prompt.begin(), prompt.end(), 0);
  const auto first = cache.create_sequence(prompt)->id;
  static_cast<void>(cache.commit(first, num_tokens + 1));
  static_cast<void>(cache.release(first));

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
    hash = bench::best_seconds(repetitions, [&] {
      const auto tokens = std::span<const token>{prompt};
      auto last = std::uint64_t{0};
      for (auto i = std::size_t{0}; i + 1 < tokens.size(); i += static_cast<std::size_t>(block_size)) {
        last = xxh3_hash::hash(last, tokens.subspan(i, static_cast<std::size_t>(block_size)));
      }
      benchmark::DoNotOptimize(last);
    });
  }
  state.counters["find_us"] = find * 1e6;
  state.counters["create_us"] = create * 1e6;
  state.counters["hash_us"] = hash * 1e6;
  state.counters["ratio"] = find / hash;
  state.counters["create_ratio"] = create / hash;
}
BENCHMARK(look_up_cached_prompt)->Arg(16)->Arg(512)->Iterations(1);

}  // namespace
