#include "../support/best_of.hpp"
#include "../support/turn_over.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/all.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

// Look-ups of a prompt of 131,072 tokens, all of it cached, where blocks lie and branch in several ways. Times are the
// best of many repetitions; ratios are times over that of only hashing the blocks, all from this run.

namespace long_prompt_bench {

using namespace pagedkv;

constexpr auto num_tokens = std::int32_t{131'072};
constexpr auto repetitions = 50;

[[nodiscard]] std::vector<token> long_prompt() {
  auto prompt = std::vector<token>(num_tokens + 1);
  std::iota(prompt.begin(), prompt.end(), 0);
  return prompt;
}

/// Looks up a cached prompt, with and without taking it.
template <class Cache>
void look_up(benchmark::State& state, Cache& cache, const token_run& prompt) {
  auto find = 0.0;
  auto create = 0.0;
  auto release = 0.0;
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
    release = bench::best_seconds(
        repetitions, [&] { id = cache.create_sequence(prompt)->id; }, [&] { static_cast<void>(cache.release(id)); });
    hash = bench::hash_seconds(repetitions, prompt.tokens, static_cast<std::size_t>(cache.config().block_size));
  }
  state.counters["find_us"] = find * 1e6;
  state.counters["create_us"] = create * 1e6;
  state.counters["release_us"] = release * 1e6;
  state.counters["hash_us"] = hash * 1e6;
  state.counters["find_ratio"] = find / hash;
  state.counters["create_ratio"] = create / hash;
}

template <class Cache>
void cache_prompt(benchmark::State& state, Cache& cache, const std::vector<token>& prompt) {
  if (!bench::cache_prompt(cache, prompt)) {
    state.SkipWithError("a prompt was refused");
  }
}

/// A pool for four such prompts.
[[nodiscard]] cache_config pool_of_four(std::int32_t block_size) {
  return {.block_size = block_size, .num_blocks = 4 * num_tokens / block_size, .head_dim = 1};
}

template <class Cache>
void look_up_under(benchmark::State& state) {
  const auto block_size = static_cast<std::int32_t>(state.range(0));
  auto cache = Cache{pool_of_four(block_size)};
  const auto prompt = long_prompt();
  cache_prompt(state, cache, prompt);
  look_up(state, cache, prompt);
}
BENCHMARK(look_up_under<kv_cache<single_thread>>)->Arg(16)->Arg(512)->Iterations(1);
BENCHMARK(look_up_under<kv_cache<rw_lock>>)->Arg(16)->Arg(512)->Iterations(1);
BENCHMARK(look_up_under<kv_cache<sharded_mutex>>)->Arg(16)->Arg(512)->Iterations(1);
BENCHMARK(look_up_under<kv_cache<lock_free, clock_sweep>>)->Arg(16)->Arg(512)->Iterations(1);

/// Every block of the prompt lies at a random place of a pool that holds so many such prompts.
template <class Cache>
void look_up_scattered(benchmark::State& state) {
  constexpr auto block_size = std::int32_t{16};
  const auto num_blocks = static_cast<std::int32_t>(state.range(0)) * num_tokens / block_size;
  auto cache = Cache{{.block_size = block_size, .num_blocks = num_blocks, .head_dim = 1, .max_sequences = num_blocks}};
  auto ids = std::vector<sequence_id>{};
  for (auto i = 0; i < num_blocks; ++i) {
    ids.push_back(cache.create_sequence(std::array{token{i}})->id);
  }
  std::ranges::shuffle(ids, std::mt19937{1});
  for (const auto id : ids) {
    static_cast<void>(cache.release(id));
  }
  const auto prompt = long_prompt();
  cache_prompt(state, cache, prompt);
  look_up(state, cache, prompt);
}
BENCHMARK(look_up_scattered<kv_cache<single_thread>>)->ArgName("prompts")->Arg(4)->Arg(12)->Iterations(1);
BENCHMARK(look_up_scattered<kv_cache<lock_free, clock_sweep>>)->ArgName("prompts")->Arg(4)->Arg(12)->Iterations(1);

/// Another prompt branches off behind every so many blocks, and is newer.
template <class Cache>
void look_up_beside_newer_branches(benchmark::State& state) {
  constexpr auto block_size = std::int32_t{16};
  const auto distance = static_cast<std::size_t>(state.range(0) * block_size);
  auto cache = Cache{pool_of_four(block_size)};
  const auto prompt = long_prompt();
  cache_prompt(state, cache, prompt);
  for (auto length = distance; length < num_tokens; length += distance) {
    auto branch = std::vector<token>(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(length));
    branch.insert(branch.end(), block_size, -1);
    cache_prompt(state, cache, branch);
  }
  look_up(state, cache, prompt);
}
BENCHMARK(look_up_beside_newer_branches<kv_cache<single_thread>>)
    ->ArgName("every")
    ->Arg(1)
    ->Arg(4)
    ->Arg(16)
    ->Iterations(1);

/// With a key in every 64th block; with hashes that the caller computed.
void look_up_with_keys(benchmark::State& state) {
  constexpr auto block_size = std::int32_t{16};
  auto cache = kv_cache<>{pool_of_four(block_size)};
  const auto prompt = long_prompt();
  auto keys = std::vector<prefix_key>{};
  for (auto i = std::int64_t{0}; i < num_tokens; i += 64 * block_size) {
    keys.push_back({i + 5, {1, 2}});
  }
  const auto id = cache.create_sequence({prompt, keys})->id;
  if (!cache.commit(id, num_tokens) || !cache.release(id)) {
    state.SkipWithError("the prompt was refused");
  }
  look_up(state, cache, {prompt, keys});
}
BENCHMARK(look_up_with_keys)->Iterations(1);

void look_up_with_hashes(benchmark::State& state) {
  constexpr auto block_size = std::int32_t{16};
  auto cache = kv_cache<>{pool_of_four(block_size)};
  const auto prompt = long_prompt();
  cache_prompt(state, cache, prompt);
  auto hashes = std::vector<std::uint64_t>(num_tokens / block_size);
  static_cast<void>(cache.hash_blocks(prompt, hashes));
  look_up(state, cache, {prompt, {}, hashes});
}
BENCHMARK(look_up_with_hashes)->Iterations(1);

/// One group of full attention.
template <class Locking>
void look_up_in_a_group(benchmark::State& state) {
  constexpr auto block_size = std::int32_t{16};
  const auto config = cache_config{
      .block_size = block_size,
      .num_blocks = 4 * num_tokens / block_size,
      .groups = {{.kind = group_kind::full, .num_layers = 1, .num_kv_heads = 1, .key_dim = 1, .value_dim = 1}}};
  auto cache = group_cache<Locking>{config};
  const auto prompt = long_prompt();
  cache_prompt(state, cache, prompt);
  look_up(state, cache, prompt);
}
BENCHMARK(look_up_in_a_group<single_thread>)->Iterations(1);
BENCHMARK(look_up_in_a_group<sharded_mutex>)->Iterations(1);

/// A prompt of 1,600 tokens of which nothing is cached, beside a long one that is.
template <class Cache>
void look_up_new_prompt(benchmark::State& state) {
  constexpr auto num_prompts = 1024;
  auto cache = Cache{pool_of_four(16)};
  cache_prompt(state, cache, long_prompt());
  auto prompts = bench::new_prompts(1600);
  auto all = std::vector<std::vector<token>>{};
  for (auto i = 0; i < num_prompts; ++i) {
    all.push_back(prompts.next());
  }
  auto find = 0.0;
  for (auto _ : state) {
    find = bench::best_seconds(repetitions, [&] {
      for (const auto& prompt : all) {
        benchmark::DoNotOptimize(cache.find_prefix(prompt));
      }
    });
  }
  state.counters["find_ns"] = find / num_prompts * 1e9;
}
BENCHMARK(look_up_new_prompt<kv_cache<single_thread>>)->Iterations(1);
BENCHMARK(look_up_new_prompt<kv_cache<lock_free, clock_sweep>>)->Iterations(1);

}  // namespace long_prompt_bench
