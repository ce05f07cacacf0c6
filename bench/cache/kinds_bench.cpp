#include "../../examples/replay/contents.hpp"
#include "../../examples/support/trace.hpp"
#include "../support/best_of.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <set>
#include <span>
#include <vector>

// Costs of groups and tiers where a model does not need them: one group of full attention, and a host tier to which
// nothing is written, or what is evicted, beside the plain cache; and both. All take the same requests in turns.

namespace kinds_bench {

using namespace pagedkv;
using plain = kv_cache<float16>;
using grouped = kv_cache<float16, layer_groups>;
using tiered = kv_cache<float16, host_tier<>>;
using grouped_tiered = kv_cache<float16, layer_groups, host_tier<>>;

/// Of this thread on a processor: other load on the machine, which takes turns with it, does not count.
[[nodiscard]] double thread_seconds() {
  auto now = timespec{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

constexpr auto trace_block_size = std::size_t{512};

[[nodiscard]] cache_config config_of(std::int32_t num_blocks, bool with_groups) {
  auto config = cache_config{.block_size = 16, .num_blocks = num_blocks, .num_kv_heads = 1, .head_dim = 8};
  if (with_groups) {
    config.groups = {{.num_layers = 1, .num_kv_heads = 1, .key_dim = 8, .value_dim = 8}};
  }
  return config;
}

[[nodiscard]] std::unique_ptr<tiered> tiered_with(std::int32_t num_blocks, bool writes) {
  auto tiers = tier_config{.model = "bench"};
  if (!writes) {
    tiers.write = write_policy::through_hits;
    tiers.hits_before_write = std::uint32_t{1} << 30;
  }
  return std::make_unique<tiered>(config_of(num_blocks, false), tiers, host_tier<>{num_blocks});
}

/// Creation, commit, 32 decode steps, release.
template <class Cache>
[[nodiscard]] bool serve(Cache& cache, const std::vector<token>& prompt) {
  const auto made = cache.create_sequence(prompt);
  auto length = static_cast<std::int64_t>(prompt.size());
  if (!made || !cache.commit(made->id, length)) {
    return false;
  }
  for (auto i = token{0}; i < 32; ++i) {
    if (!cache.append(made->id, i) || !cache.commit(made->id, ++length)) {
      return false;
    }
  }
  return cache.release(made->id).has_value();
}

[[nodiscard]] std::vector<std::vector<token>> prompts_of(const std::vector<support::trace_request>& requests) {
  auto prompts = std::vector<std::vector<token>>{};
  for (const auto& request : requests) {
    auto& prompt = prompts.emplace_back(request.blocks.size() * trace_block_size);
    for (std::size_t i = 0; i < request.blocks.size(); ++i) {
      replay::fill_tokens(request.blocks[i], std::span{prompt}.subspan(i * trace_block_size, trace_block_size));
    }
    prompt.resize(request.num_prompt_tokens);
  }
  return prompts;
}

/// The conversation trace's first requests; `range(0)`: percent of their distinct blocks that the pool has.
void requests_by_kind(benchmark::State& state) {
  auto requests = std::vector<support::trace_request>{};
  try {
    requests = support::read_trace(PAGEDKV_TRACES "/conversation_trace.jsonl", 1'000);
  } catch (const std::exception& e) {
    state.SkipWithError(e.what());
    return;
  }
  auto distinct = std::set<std::uint64_t>{};
  for (const auto& request : requests) {
    distinct.insert(request.blocks.begin(), request.blocks.end());
  }
  const auto num_blocks = static_cast<std::int32_t>(static_cast<std::int64_t>(distinct.size() * trace_block_size / 16) *
                                                    state.range(0) / 100);
  const auto prompts = prompts_of(requests);
  auto best = std::array{1e9, 1e9, 1e9, 1e9, 1e9};
  for (auto _ : state) {
    auto first = plain{config_of(num_blocks, false)};
    auto second = grouped{config_of(num_blocks, true)};
    const auto idle = tiered_with(num_blocks, false);
    const auto writing = tiered_with(num_blocks, true);
    auto both = grouped_tiered{config_of(num_blocks, true), tier_config{.model = "bench"}, host_tier<>{num_blocks}};
    auto seconds = std::array<double, 5>{};
    for (const auto& prompt : prompts) {
      const auto time = [&](std::size_t kind, auto& cache) {
        const auto start = thread_seconds();
        if (!serve(cache, prompt)) {
          state.SkipWithError("a request was refused");
        }
        seconds[kind] += thread_seconds() - start;
      };
      time(0, first);
      time(1, second);
      time(2, *idle);
      time(3, *writing);
      time(4, both);
    }
    std::ranges::transform(best, seconds, best.begin(), [](double a, double b) { return std::min(a, b); });
  }
  state.counters["us_per_request"] = best[0] * 1e6 / static_cast<double>(prompts.size());
  state.counters["groups_ratio"] = best[1] / best[0];
  state.counters["idle_tier_ratio"] = best[2] / best[0];
  state.counters["writing_tier_ratio"] = best[3] / best[0];
  state.counters["groups_writing_tier_ratio"] = best[4] / best[0];
}
BENCHMARK(requests_by_kind)->Arg(10)->Arg(110)->Iterations(3)->Unit(benchmark::kMillisecond);

/// Appends one token at a time inside a block.
void append_by_kind(benchmark::State& state) {
  constexpr auto num_tokens = std::int32_t{8192};
  const auto nanoseconds = [&](auto& cache) {
    auto id = sequence_id{};
    return bench::best_seconds(
               50,
               [&] {
                 static_cast<void>(cache.release(id));
                 id = cache.create_sequence(std::vector<token>{0})->id;
               },
               [&] {
                 for (auto i = token{0}; i < num_tokens; ++i) {
                   if (!cache.append(id, i)) {
                     state.SkipWithError("a token did not fit");
                   }
                   benchmark::ClobberMemory();
                 }
               }) *
           1e9 / num_tokens;
  };
  auto config = config_of(2, false);
  config.block_size = num_tokens + 1;
  auto grouped_config = config_of(2, true);
  grouped_config.block_size = config.block_size;
  for (auto _ : state) {
    auto first = plain{config};
    auto second = grouped{grouped_config};
    auto third = tiered{config, tier_config{.model = "bench"}, host_tier<>{2}};
    const auto ns = std::array{nanoseconds(first), nanoseconds(second), nanoseconds(third)};
    state.counters["ns"] = ns[0];
    state.counters["groups_ratio"] = ns[1] / ns[0];
    state.counters["tier_ratio"] = ns[2] / ns[0];
  }
}
BENCHMARK(append_by_kind)->Iterations(1);

/// Bytes of metadata for each block of 16 tokens.
void metadata_by_kind(benchmark::State& state) {
  constexpr auto num_blocks = std::int32_t{1} << 17;
  const auto bytes = [](const memory_profile& profile) {
    return static_cast<double>(profile.pool + profile.index) / num_blocks;
  };
  for (auto _ : state) {
    state.counters["bytes"] = bytes(plain{config_of(num_blocks, false)}.memory());
    state.counters["groups_bytes"] = bytes(grouped{config_of(num_blocks, true)}.memory());
    state.counters["tier_bytes"] = bytes(tiered_with(num_blocks, false)->memory());
  }
}
BENCHMARK(metadata_by_kind)->Iterations(1);

}  // namespace kinds_bench
