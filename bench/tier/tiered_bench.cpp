#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

// The cost of ample tiers that nothing uses yet: nothing was evicted. Operations alternate between a cache with a host
// tier and one without; `ratio` is the time of the one over that of the other, both from this run.

namespace {

using namespace pagedkv;
using clock_type = std::chrono::steady_clock;

cache_config device() {
  auto config = cache_config{};
  config.num_blocks = 4096;
  config.head_dim = 2;
  return config;
}

std::vector<token> prompt_of(std::int64_t length, token first) {
  auto prompt = std::vector<token>(static_cast<std::size_t>(length));
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

template <class Cache>
void cache_prompt(Cache& cache, const std::vector<token>& prompt) {
  const auto made = cache.create_sequence(prompt).value();
  cache.commit(made.id, made.num_tokens).value();
  cache.release(made.id).value();
}

/// Creates a sequence and releases it; returns the time of the creation.
template <class Cache>
double create(Cache& cache, const std::vector<token>& prompt) {
  const auto start = clock_type::now();
  const auto made = cache.create_sequence(prompt);
  const auto took = std::chrono::duration<double>(clock_type::now() - start).count();
  benchmark::DoNotOptimize(made->num_cached_tokens);
  cache.release(made->id).value();
  return took;
}

/// Appends within blocks, and takes new ones.
template <class Cache>
double append(Cache& cache) {
  const auto made = cache.create_sequence(prompt_of(1, 0)).value();
  auto num_appended = 0;
  const auto start = clock_type::now();
  for (auto next = token{0}; next < 4096; ++next) {
    num_appended += cache.append(made.id, next) ? 1 : 0;
  }
  benchmark::DoNotOptimize(num_appended);
  const auto took = std::chrono::duration<double>(clock_type::now() - start).count();
  cache.release(made.id).value();
  return took;
}

template <class Measure>
void compare(benchmark::State& state, Measure measure) {
  auto plain = kv_cache<>{device()};
  auto tiered = tiered_cache<>{device(), {}, {8192}};
  for (auto* prompt : {&measure.cached}) {
    if (!prompt->empty()) {
      cache_prompt(plain, *prompt);
      cache_prompt(tiered, *prompt);
    }
  }
  auto with = 0.0;
  auto without = 0.0;
  for ([[maybe_unused]] const auto each : state) {
    without += measure(plain);
    with += measure(tiered);
  }
  state.counters["ratio"] = with / without;
}

struct creation {
  std::vector<token> cached;
  std::vector<token> prompt;
  template <class Cache>
  double operator()(Cache& cache) const {
    return create(cache, prompt);
  }
};

struct appending {
  std::vector<token> cached = {};
  template <class Cache>
  double operator()(Cache& cache) const {
    return append(cache);
  }
};

void create_cached(benchmark::State& state) {
  const auto prompt = prompt_of(state.range(0), 0);
  compare(state, creation{prompt, prompt});
}
void create_new(benchmark::State& state) { compare(state, creation{{}, prompt_of(state.range(0), 0)}); }
void append_tokens(benchmark::State& state) { compare(state, appending{}); }

BENCHMARK(create_cached)->Arg(256)->Arg(8192);
BENCHMARK(create_new)->Arg(256)->Arg(8192);
BENCHMARK(append_tokens);

}  // namespace
