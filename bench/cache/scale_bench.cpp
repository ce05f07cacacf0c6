#include "../support/turn_over.hpp"

#include <pagedkv/pagedkv.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

// Costs by size, of caches that have served for long: every block of a pool has been replaced twenty times. The time is
// that of one block of a prompt, of one sequence, or of one token of a prompt; it should not grow with the size.

namespace scale_bench {

using namespace pagedkv;
using cache_type = kv_cache<float16>;
using clock_type = std::chrono::steady_clock;

constexpr auto block_size = std::int32_t{16};
constexpr auto blocks_of_prompt = std::int64_t{100};
constexpr auto turnovers = std::int64_t{20};
constexpr auto batch = std::int64_t{64};

[[nodiscard]] cache_type make_cache(std::int64_t num_blocks, std::int64_t max_sequences = 16) {
  return cache_type{{.block_size = block_size,
                     .num_blocks = static_cast<std::int32_t>(num_blocks),
                     .num_kv_heads = 1,
                     .head_dim = 1,
                     .max_sequences = static_cast<std::int32_t>(max_sequences)}};
}

/// Measures a call; an iteration's time is that of one of its units.
template <class Call>
void measure(benchmark::State& state, std::int64_t num_units, Call&& call) {
  const auto start = clock_type::now();
  if (!call()) {
    state.SkipWithError("an operation was refused");
  }
  const auto taken = std::chrono::duration<double>(clock_type::now() - start).count();
  state.SetIterationTime(taken / static_cast<double>(num_units));
}

/// A pool that is full of cached prompts, whose tokens are `prompt_of` their numbers.
struct aged_pool {
  explicit aged_pool(benchmark::State& state) : cache(make_cache(state.range(0))) {
    const auto num_prompts = turnovers * state.range(0) / blocks_of_prompt;
    for (; next < num_prompts; ++next) {
      if (!bench::cache_prompt(cache, prompt_of(next))) {
        state.SkipWithError("a prompt was refused");
        return;
      }
    }
  }

  [[nodiscard]] const std::vector<token>& prompt_of(std::int64_t number) {
    prompt.resize(static_cast<std::size_t>(blocks_of_prompt * block_size));
    std::iota(prompt.begin(), prompt.end(), static_cast<token>(number * 64));
    prompt.front() = static_cast<token>(number);
    return prompt;
  }

  /// One of the prompts that came last: it is cached, and was not looked up before others were.
  [[nodiscard]] const std::vector<token>& cached_prompt() {
    const auto num_cached = static_cast<std::int64_t>(cache.config().num_blocks) / blocks_of_prompt;
    return prompt_of(next - 1 - static_cast<std::int64_t>(random()) % (num_cached / 2));
  }

  cache_type cache;
  std::vector<token> prompt;
  std::mt19937 random{1};
  std::int64_t next = 0;
};

void replace_by_blocks(benchmark::State& state) {
  auto pool = aged_pool{state};
  for (auto _ : state) {
    const auto& prompt = pool.prompt_of(pool.next++);
    measure(state, blocks_of_prompt, [&] { return bench::cache_prompt(pool.cache, prompt); });
  }
}

void hit_by_blocks(benchmark::State& state) {
  auto pool = aged_pool{state};
  for (auto _ : state) {
    const auto& prompt = pool.cached_prompt();
    measure(state, blocks_of_prompt, [&] {
      const auto made = pool.cache.create_sequence(prompt);
      return made && made->num_cached_tokens == std::ssize(prompt) - block_size && pool.cache.release(made->id);
    });
  }
}

void find_by_blocks(benchmark::State& state) {
  auto pool = aged_pool{state};
  for (auto _ : state) {
    const auto& prompt = pool.cached_prompt();
    measure(state, blocks_of_prompt, [&] { return pool.cache.find_prefix(prompt) == std::ssize(prompt) - block_size; });
  }
}

/// Sequences of up to a block and a half in a pool that other sequences have aged, in random order.
struct many_sequences {
  explicit many_sequences(benchmark::State& state) : cache(make_cache(4 * state.range(0) + 1'000, state.range(0) + 1)) {
    bench::turn_over(state, cache, turnovers);
    auto random = std::mt19937{1};
    for (std::int64_t i = 0; i < state.range(0); ++i) {
      const auto prompt = std::vector<token>(1 + random() % 24, static_cast<token>(i));
      const auto made = cache.create_sequence(prompt, {.expected_tokens = 32});
      if (!made || !cache.commit(made->id, std::ssize(prompt))) {
        state.SkipWithError("a sequence was refused");
        return;
      }
      ids.push_back(made->id);
      lengths.push_back(std::ssize(prompt));
    }
    order.resize(ids.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::shuffle(order, random);
  }

  /// The index of a sequence, another each time until all had their turn.
  [[nodiscard]] std::size_t turn() { return order[at++ % order.size()]; }

  cache_type cache;
  std::vector<sequence_id> ids;
  std::vector<std::int64_t> lengths;
  std::vector<std::size_t> order;
  std::size_t at = 0;
};

/// A token is appended and committed, and taken back later, so that no sequence grows.
void append_by_sequences(benchmark::State& state) {
  auto all = many_sequences{state};
  auto touched = std::vector<std::size_t>(batch);
  for (auto _ : state) {
    std::ranges::generate(touched, [&] { return all.turn(); });
    measure(state, batch, [&] {
      return std::ranges::all_of(touched, [&](std::size_t i) {
        return all.cache.append(all.ids[i], 7) && all.cache.commit(all.ids[i], all.lengths[i] + 1);
      });
    });
    for (const auto i : touched) {
      if (!all.cache.truncate(all.ids[i], all.lengths[i])) {
        state.SkipWithError("a sequence was not cut");
      }
    }
  }
}

void fork_by_sequences(benchmark::State& state) {
  auto all = many_sequences{state};
  for (auto _ : state) {
    measure(state, batch, [&] {
      for (std::int64_t i = 0; i < batch; ++i) {
        const auto made = all.cache.fork(all.ids[all.turn()]);
        if (!made || !all.cache.release(*made)) {
          return false;
        }
      }
      return true;
    });
  }
}

[[nodiscard]] std::vector<token> long_prompt(std::int64_t num_tokens, std::int64_t number) {
  auto prompt = std::vector<token>(static_cast<std::size_t>(num_tokens));
  std::iota(prompt.begin(), prompt.end(), static_cast<token>(number * 1'000'003));
  return prompt;
}

void hit_by_tokens(benchmark::State& state) {
  auto cache = make_cache(3 * state.range(0) / block_size + 1'000);
  bench::turn_over(state, cache, turnovers);
  const auto prompt = long_prompt(state.range(0), 1);
  if (!bench::cache_prompt(cache, prompt)) {
    state.SkipWithError("the prompt was refused");
    return;
  }
  for (auto _ : state) {
    measure(state, state.range(0), [&] {
      const auto made = cache.create_sequence(prompt);
      return made && cache.release(made->id);
    });
  }
}

void compute_by_tokens(benchmark::State& state) {
  auto cache = make_cache(3 * state.range(0) / block_size + 1'000);
  bench::turn_over(state, cache, turnovers);
  auto number = std::int64_t{1};
  for (auto _ : state) {
    const auto prompt = long_prompt(state.range(0), ++number);
    measure(state, state.range(0), [&] { return bench::cache_prompt(cache, prompt); });
  }
}

/// Iterations are counted out: Google Benchmark would take the time of a unit for that of an iteration.
void over_blocks(benchmark::internal::Benchmark* which) {
  which->ArgName("num_blocks")->RangeMultiplier(10)->Range(10'000, 10'000'000)->UseManualTime()->Iterations(20'000);
}
BENCHMARK(replace_by_blocks)->Apply(over_blocks);
BENCHMARK(hit_by_blocks)->Apply(over_blocks);
BENCHMARK(find_by_blocks)->Apply(over_blocks);

void over_sequences(benchmark::internal::Benchmark* which) {
  which->ArgName("num_sequences")->RangeMultiplier(10)->Range(100, 100'000)->UseManualTime()->Iterations(20'000);
}
BENCHMARK(append_by_sequences)->Apply(over_sequences);
BENCHMARK(fork_by_sequences)->Apply(over_sequences);

void over_tokens(benchmark::internal::Benchmark* which) {
  which->ArgName("num_tokens")->RangeMultiplier(10)->Range(1'000, 10'000'000)->UseManualTime()->Iterations(10);
}
BENCHMARK(hit_by_tokens)->Apply(over_tokens);
BENCHMARK(compute_by_tokens)->Apply(over_tokens);

}  // namespace scale_bench
