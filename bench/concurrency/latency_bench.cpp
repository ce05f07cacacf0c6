#include "../support/latencies.hpp"
#include "policies.hpp"

#include <pagedkv/policy/locking/parts/mutexes.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

// Latency of single calls while other threads are at work, in microseconds. With more threads than cores, a call may
// also wait for a core: `compute` measures this wait for threads that need nothing from each other.

namespace {

using namespace pagedkv;
using namespace pagedkv::bench;
using steady_clock = std::chrono::steady_clock;

constexpr auto run_time = std::chrono::seconds{1};

/// Reports a benchmark's latencies, and as `p99.9_vs_X` the ratio of that quantile to the one of each X before it in
/// the same run.
void report(benchmark::State& state, latencies& times, const std::string& operation, std::string_view policy) {
  static auto before = std::map<std::string, std::map<std::string, double>>{};
  times.report(state);
  const auto p999 = times.quantile(0.999);
  auto& others = before[operation];
  for (const auto& [name, other] : others) {
    state.counters["p99.9_vs_" + name] = p999 / other;
  }
  others.emplace(policy, p999);
}

/// Calls repeatedly until the time is over or the result is false.
template <class Call>
void repeat_until(steady_clock::time_point end, Call&& call) {
  while (steady_clock::now() < end && call()) {
  }
}

struct std_shared_mutex : std::shared_mutex {
  static constexpr std::string_view name = "std_shared_mutex";
};

struct own_shared_mutex : fair_shared_mutex {
  static constexpr std::string_view name = "fair_shared_mutex";
};

/// One writer among eight readers, each of which repeatedly holds the lock for 20 µs. Ends after a number of writes or
/// a time limit: a wait that reaches the limit is cut short, because the readers leave.
template <class Mutex>
void wait_as_writer(benchmark::State& state) {
  constexpr auto num_readers = 8;
  constexpr auto num_writes = std::size_t{4'000};
  constexpr auto most_time = std::chrono::seconds{7};
  constexpr auto held = std::chrono::microseconds{20};
  auto waits = latencies{};
  for (auto _ : state) {
    const auto end = steady_clock::now() + most_time;
    auto mutex = Mutex{};
    auto done = std::atomic{false};
    auto entered = std::latch{num_readers};
    auto readers = std::vector<std::jthread>{};
    for (auto i = 0; i < num_readers; ++i) {
      readers.emplace_back([&] {
        {
          const auto lock = std::shared_lock{mutex};
          entered.count_down();
        }
        repeat_until(end, [&] {
          const auto lock = std::shared_lock{mutex};
          repeat_until(steady_clock::now() + held, [] { return true; });
          return !done;
        });
      });
    }
    entered.wait();
    repeat_until(end, [&] {
      const auto lock = waits.measure([&] { return std::unique_lock{mutex}; });
      return waits.num_calls() < num_writes;
    });
    done = true;
  }
  report(state, waits, "wait as writer", Mutex::name);
}

/// The state of one thread of the benchmarks below, in cache lines of its own.
struct alignas(64) worker {
  std::deque<sequence_id> sequences;
  latencies answers;
  latencies refusals;  // those of creations that got no block

  /// Releases the oldest sequences, at most this many.
  template <class Cache>
  void release(Cache& cache, std::size_t num_released) {
    for (auto left = std::min(num_released, sequences.size()); left > 0; --left) {
      cache.release(sequences.front()).value();
      sequences.pop_front();
    }
  }
};

/// A cache of which 99 % is pinned; the workers' sequences of one block use the rest.
template <class Cache>
[[nodiscard]] std::unique_ptr<Cache> full_cache(std::int32_t num_blocks, std::vector<worker>& workers) {
  constexpr auto num_parts = 100;
  const auto part = num_blocks / num_parts;
  auto config = config_of(num_blocks);
  config.max_sequences = part + num_parts;
  auto cache = std::make_unique<Cache>(config);
  for (auto i = 1; i < num_parts; ++i) {
    const auto tokens = text(static_cast<std::size_t>(part) * block_size, i * part * block_size);
    const auto id = cache->create_sequence(tokens).value().id;
    cache->commit(id, part * block_size).value();
    cache->pin(tokens).value();
    cache->release(id).value();
  }
  for (auto i = 0; i < part; ++i) {
    const auto id = cache->create_sequence(text(block_size, -1 - i)).value().id;
    cache->commit(id, block_size).value();
    workers[static_cast<std::size_t>(i) % workers.size()].sequences.push_back(id);
  }
  return cache;
}

/// Each thread creates sequences of one uncached block and publishes it; creation is measured. A refused thread
/// releases some sequences, so blocks are evicted, and at most 63 of 64 creations get a block.
template <locking Locking>
void answer_when_full(benchmark::State& state) {
  static auto workers = std::vector<worker>{};
  static auto cache = std::unique_ptr<cache_under<Locking>>{};
  const auto num_blocks = static_cast<std::int32_t>(state.range(0));
  if (state.thread_index() == 0) {
    workers = std::vector<worker>(static_cast<std::size_t>(state.threads()));
    cache = full_cache<cache_under<Locking>>(num_blocks, workers);
  }
  auto next = static_cast<token>(-1 - num_blocks - state.thread_index());
  for (auto _ : state) {
    auto& own = workers[static_cast<std::size_t>(state.thread_index())];
    repeat_until(steady_clock::now() + run_time, [&] {
      const auto tokens = text(block_size, next);
      next -= state.threads();
      const auto made = own.answers.measure([&] { return cache->create_sequence(tokens); });
      if (made) {
        own.sequences.push_back(made->id);
        benchmark::DoNotOptimize(cache->commit(made->id, block_size));
      } else {
        own.refusals.add(own.answers.last());
        own.release(*cache, 63);
      }
      return true;
    });
  }
  if (state.thread_index() == 0) {
    auto answers = latencies{};
    auto refusals = latencies{};
    for (const auto& each : workers) {
      answers.join(each.answers);
      refusals.join(each.refusals);
    }
    state.counters["refusals"] = static_cast<double>(refusals.num_calls());
    state.counters["refusal_p50_us"] = refusals.quantile(0.5);
    report(state, answers, std::to_string(num_blocks) + " blocks, threads " + std::to_string(state.threads()),
           Locking::name);
    cache.reset();
  }
}

/// Each thread repeatedly computes for some microseconds.
void compute(benchmark::State& state) {
  static auto workers = std::vector<worker>{};
  if (state.thread_index() == 0) {
    workers = std::vector<worker>(static_cast<std::size_t>(state.threads()));
  }
  for (auto _ : state) {
    auto& own = workers[static_cast<std::size_t>(state.thread_index())];
    auto value = std::uint64_t{1};
    repeat_until(steady_clock::now() + run_time, [&] {
      value = own.answers.measure([&] {
        for (auto i = 0; i < 2'000; ++i) {
          benchmark::DoNotOptimize(value = value * 6'364'136'223'846'793'005 + 1);
        }
        return value;
      });
      return true;
    });
  }
  if (state.thread_index() == 0) {
    auto all = latencies{};
    for (const auto& each : workers) {
      all.join(each.answers);
    }
    all.report(state);
  }
}

void in_milliseconds(benchmark::internal::Benchmark* benchmark) {
  benchmark->Iterations(1)->UseRealTime()->Unit(benchmark::kMillisecond);
}

}  // namespace

// Comparisons depend on the order.
BENCHMARK(wait_as_writer<std_shared_mutex>)->Apply(in_milliseconds);
BENCHMARK(wait_as_writer<own_shared_mutex>)->Apply(in_milliseconds);

BENCHMARK(compute)->Threads(1)->Threads(2)->Threads(16)->Apply(in_milliseconds);
[[maybe_unused]] static const bool answers_are_registered = register_over(
    lockings_of_threads{}, "answer_when_full",
    []<class Locking>(std::type_identity<Locking>, benchmark::State& state) { answer_when_full<Locking>(state); },
    [](auto, benchmark::internal::Benchmark* each) {
      each->ArgName("blocks")->Arg(10'000)->Arg(1'000'000)->Threads(1)->Threads(2)->Threads(16)->Apply(in_milliseconds);
    });
