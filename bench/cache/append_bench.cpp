#include "../support/best_of.hpp"

#include <pagedkv/pagedkv.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

// Times are the best of many repetitions; `ratio` is pagedkv's time over the baseline's, both from this run.

namespace append_bench {

using namespace pagedkv;

constexpr auto repetitions = 50;

/// Appends one token at a time inside a block, against a vector with capacity. Both states are in memory between
/// tokens, as when other sequences' tokens come between.
template <class Locking>
void append_inside_a_block(benchmark::State& state) {
  constexpr auto num_tokens = std::int32_t{8192};
  auto cache = kv_cache<float16, Locking>{{.block_size = num_tokens + 1, .num_blocks = 1, .head_dim = 1}};
  auto id = sequence_id{};
  auto tokens = std::vector<token>{};
  benchmark::DoNotOptimize(&tokens);
  auto ours = 0.0;
  auto baseline = 0.0;
  for (auto _ : state) {
    ours = bench::best_seconds(
        repetitions,
        [&] {
          static_cast<void>(cache.release(id));
          id = cache.create_sequence(std::vector<token>{0})->id;
        },
        [&] {
          for (auto i = token{0}; i < num_tokens; ++i) {
            const auto done = cache.append(id, i);
            if (!done) {
              state.SkipWithError("a token did not fit");
            }
            benchmark::ClobberMemory();
          }
        });
    baseline = bench::best_seconds(
        repetitions, [&] { tokens = {}, tokens.reserve(num_tokens); },
        [&] {
          for (auto i = token{0}; i < num_tokens; ++i) {
            tokens.push_back(i);
            benchmark::ClobberMemory();
          }
        });
  }
  state.counters["ns"] = ours / num_tokens * 1e9;
  state.counters["push_back_ns"] = baseline / num_tokens * 1e9;
  state.counters["ratio"] = ours / baseline;
}
BENCHMARK(append_inside_a_block<single_thread>)->Iterations(1);
BENCHMARK(append_inside_a_block<rw_lock>)->Iterations(1);

/// Appends and commits one token at a time inside a block, which publishes nothing, against the appends alone.
void commit_inside_a_block(benchmark::State& state) {
  constexpr auto num_tokens = std::int32_t{8192};
  auto cache = kv_cache<>{{.block_size = num_tokens + 1, .num_blocks = 1, .head_dim = 1}};
  auto id = sequence_id{};
  const auto start = [&] {
    static_cast<void>(cache.release(id));
    id = cache.create_sequence(std::vector<token>{0})->id;
  };
  const auto seconds = [&](bool commits) {
    return bench::best_seconds(repetitions, start, [&] {
      for (auto i = token{0}; i < num_tokens; ++i) {
        if (!cache.append(id, i) || (commits && !cache.commit(id, i + 2))) {
          state.SkipWithError("a token did not fit");
        }
        benchmark::ClobberMemory();
      }
    });
  };
  auto appends = 0.0;
  auto both = 0.0;
  for (auto _ : state) {
    appends = seconds(false);
    both = seconds(true);
  }
  state.counters["commit_ns"] = (both - appends) / num_tokens * 1e9;
  state.counters["append_ns"] = appends / num_tokens * 1e9;
  state.counters["ratio"] = both / appends;
}
BENCHMARK(commit_inside_a_block)->Iterations(1);

/// Appends a token to each of so many sequences, in the order of their creation and in a random one, against as many
/// appends to a thousand sequences.
void append_to_each(benchmark::State& state) {
  constexpr auto block_size = std::int32_t{64};
  const auto seconds = [&](std::int32_t num_sequences, bool shuffled) {
    auto cache = kv_cache<>{
        {.block_size = block_size, .num_blocks = num_sequences, .head_dim = 1, .max_sequences = num_sequences}};
    auto ids = std::vector<sequence_id>{};
    for (auto i = 0; i < num_sequences; ++i) {
      ids.push_back(cache.create_sequence(std::vector<token>{i})->id);
    }
    if (shuffled) {
      std::shuffle(ids.begin(), ids.end(), std::mt19937{1});
    }
    const auto best = bench::best_seconds(block_size - 1, [&] {
      for (const auto id : ids) {
        if (!cache.append(id, 1)) {
          state.SkipWithError("a token did not fit");
        }
      }
    });
    return best / num_sequences * 1e9;
  };
  const auto num_sequences = static_cast<std::int32_t>(state.range(0));
  for (auto _ : state) {
    state.counters["of_1000_ns"] = seconds(1000, false);
    state.counters["in_order_ns"] = seconds(num_sequences, false);
    state.counters["shuffled_ns"] = seconds(num_sequences, true);
  }
  state.counters["ratio"] = state.counters["in_order_ns"] / state.counters["of_1000_ns"];
}
BENCHMARK(append_to_each)->Arg(10'000)->Arg(100'000)->Iterations(1);

/// Prompts that evict as many blocks in a large pool, where a block that has a twin and a child is kept, against one
/// where none has a twin.
void evict_beside_a_kept_twin(benchmark::State& state) {
  constexpr auto num_blocks = std::int32_t{1} << 20;
  constexpr auto num_evicted = std::int32_t{4096};
  const auto seconds = [&](bool has_twin) {
    auto cache = kv_cache<>{{.block_size = 4, .num_blocks = num_blocks, .head_dim = 1, .max_sequences = 8}};
    auto filler = std::vector<token>(std::size_t{4} * (num_blocks - 3));
    std::iota(filler.begin(), filler.end(), token{10});
    const auto made = cache.create_sequence(filler)->id;
    cache.commit(made, std::ssize(filler)).value();
    cache.release(made).value();
    const auto longer = std::vector<token>{1, 2, 3, 4, 5, 6, 7, 8};
    const auto used = cache.create_sequence(std::vector<token>{has_twin ? 1 : 9, 2, 3, 4})->id;
    const auto kept = cache.create_sequence(longer)->id;
    cache.commit(used, 4).value();
    cache.commit(kept, 8).value();
    cache.release(kept).value();
    auto prompt = std::vector<token>(std::size_t{4} * num_evicted);
    return bench::best_seconds(
        20, [&] { --prompt.front(); },
        [&] {
          const auto id = cache.create_sequence(prompt)->id;
          cache.commit(id, std::ssize(prompt)).value();
          cache.release(id).value();
        });
  };
  auto without = 0.0;
  auto beside = 0.0;
  for (auto _ : state) {
    without = seconds(false);
    beside = seconds(true);
  }
  state.counters["block_ns"] = beside / num_evicted * 1e9;
  state.counters["without_ns"] = without / num_evicted * 1e9;
  state.counters["ratio"] = beside / without;
}
BENCHMARK(evict_beside_a_kept_twin)->Iterations(1);

/// Creates and releases a sequence of one block, against a block of the C++ library's heap.
void create_and_release(benchmark::State& state) {
  constexpr auto num_sequences = 4096;
  auto cache = kv_cache<>{{.block_size = 16, .num_blocks = 4096}};
  const auto prompt = std::vector<token>{1, 2, 3};
  auto ours = 0.0;
  auto baseline = 0.0;
  for (auto _ : state) {
    ours = bench::best_seconds(repetitions, [&] {
      for (auto i = 0; i < num_sequences; ++i) {
        static_cast<void>(cache.release(cache.create_sequence(prompt)->id));
      }
    });
    baseline = bench::best_seconds(repetitions, [&] {
      for (auto i = 0; i < num_sequences; ++i) {
        auto block = std::vector<token>(16);
        benchmark::DoNotOptimize(block);
      }
    });
  }
  state.counters["ns"] = ours / num_sequences * 1e9;
  state.counters["heap_ns"] = baseline / num_sequences * 1e9;
  state.counters["ratio"] = ours / baseline;
}
BENCHMARK(create_and_release)->Iterations(1);

}  // namespace append_bench
