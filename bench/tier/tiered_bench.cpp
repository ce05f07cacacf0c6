#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

// The cost of ample tiers that nothing uses yet: nothing was evicted. Operations alternate between a cache with a host
// tier and one without; `ratio` is the time of the one over that of the other, both from this run, `best` the same of
// the fastest operation of each, which other load on the machine changes least, and `best_ns` the one with a tier.

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

/// Commits a prompt, whose blocks are published; returns the time of that. Forgets them afterwards.
template <class Cache>
double commit(Cache& cache, const std::vector<token>& prompt) {
  const auto made = cache.create_sequence(prompt).value();
  const auto start = clock_type::now();
  const auto done = cache.commit(made.id, made.num_tokens);
  benchmark::DoNotOptimize(done.has_value());
  const auto took = std::chrono::duration<double>(clock_type::now() - start).count();
  cache.release(made.id).value();
  cache.reset_prefix_cache().value();
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

struct times {
  double sum = 0;
  double best = std::numeric_limits<double>::infinity();

  void add(double seconds) {
    sum += seconds;
    best = std::min(best, seconds);
  }
};

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
  auto with = times{};
  auto without = times{};
  for ([[maybe_unused]] const auto each : state) {
    without.add(measure(plain));
    with.add(measure(tiered));
  }
  state.counters["ratio"] = with.sum / without.sum;
  state.counters["best"] = with.best / without.best;
  state.counters["best_ns"] = with.best * 1e9;
}

struct creation {
  std::vector<token> cached;
  std::vector<token> prompt;
  template <class Cache>
  double operator()(Cache& cache) const {
    return create(cache, prompt);
  }
};

struct committing {
  std::vector<token> cached;
  std::vector<token> prompt;
  template <class Cache>
  double operator()(Cache& cache) const {
    return commit(cache, prompt);
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
void commit_new(benchmark::State& state) { compare(state, committing{{}, prompt_of(state.range(0), 0)}); }
void append_tokens(benchmark::State& state) { compare(state, appending{}); }

BENCHMARK(create_cached)->Arg(256)->Arg(8192);
BENCHMARK(create_new)->Arg(256)->Arg(8192);
BENCHMARK(commit_new)->Arg(256)->Arg(8192);
BENCHMARK(append_tokens);

}  // namespace
