#include "../support/best_of.hpp"
#include "../support/over_policies.hpp"

#include <pagedkv/policy/eviction/all.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

// One table: a row for each policy and pool size, in nanoseconds. Each figure is the best of many passes.
//
//     eviction_bench --benchmark_counters_tabular=true

using namespace pagedkv;

namespace {

constexpr auto take = [](block_id, auto...) { return eviction_answer::taken; };

constexpr auto num_hits = std::size_t{1} << 16;
constexpr auto num_victims = std::size_t{1} << 14;
constexpr auto repetitions = 100;

block_release release_of(std::uint64_t content) {
  const auto hash = content * 0x9e3779b97f4a7c15U;
  return {.hash = hash ^ hash >> 32,
          .depth = static_cast<std::uint32_t>(content % 16),
          .num_chain_blocks = 16,
          .num_prompt_tokens = 256};
}

/// Every block of the pool is published and evictable.
template <eviction_policy Policy>
void fill(Policy& policy, std::int32_t num_blocks) {
  for (auto i = 0; i < num_blocks; ++i) {
    policy.insert(block_id{i}, release_of(static_cast<std::uint64_t>(i)));
  }
}

std::vector<block_id> choices_below(std::int32_t num_blocks) {
  auto random = std::mt19937_64{1};
  auto choices = std::vector<block_id>(num_hits);
  for (auto& choice : choices) {
    choice = to_block(random() % static_cast<std::uint64_t>(num_blocks));
  }
  return choices;
}

double nanoseconds(double seconds, std::size_t count) { return seconds * 1e9 / static_cast<double>(count); }

/// A block is hit and released again.
template <eviction_policy Policy>
double cost_of_hit(Policy& policy, std::int32_t num_blocks) {
  const auto choices = choices_below(num_blocks);
  const auto seconds = bench::best_seconds(repetitions, [&] {
    for (const auto block : choices) {
      policy.remove(block);
      policy.insert(block, release_of(to_index(block)));
    }
  });
  return nanoseconds(seconds, num_hits);
}

/// A block is evicted and its successor published.
template <eviction_policy Policy>
double cost_of_victim(Policy& policy, std::uint64_t& content) {
  const auto seconds = bench::best_seconds(repetitions, [&] {
    for (auto i = std::size_t{0}; i < num_victims; ++i) {
      const auto block = policy.victim(take, timestamp{});
      policy.insert(block, release_of(content++));
    }
  });
  return nanoseconds(seconds, num_victims);
}

/// A victim also while 99 of 100 blocks are in use.
template <eviction_policy Policy>
void cost_of(benchmark::State& state) {
  const auto num_blocks = static_cast<std::int32_t>(state.range(0));
  for (auto _ : state) {
    auto hit = Policy{num_blocks};
    fill(hit, num_blocks);
    state.counters["hit_ns"] = cost_of_hit(hit, num_blocks);

    auto evicting = Policy{num_blocks};
    fill(evicting, num_blocks);
    auto content = std::uint64_t{1} << 32;
    state.counters["victim_ns"] = cost_of_victim(evicting, content);
    for (auto i = 0; i < num_blocks; ++i) {
      if (i % 100 != 0) {
        evicting.remove(block_id{i});
      }
    }
    state.counters["victim_among_used_ns"] = cost_of_victim(evicting, content);
    state.counters["bytes_per_block"] = static_cast<double>(hit.metadata_bytes()) / static_cast<double>(num_blocks);
  }
}

template <class... Policies>
auto those_that_evict(policy_list<Policies...>) {
  return (policy_list<>{} + ... + std::conditional_t<evicts<Policies>, policy_list<Policies>, policy_list<>>{});
}
using evicting = decltype(those_that_evict(all_evictions{}));

[[maybe_unused]] const bool is_registered = bench::register_over(
    evicting{}, "cost_of",
    []<class Policy>(std::type_identity<Policy>, benchmark::State& state) { cost_of<Policy>(state); },
    [](auto, benchmark::internal::Benchmark* benchmark) {
      benchmark->ArgName("blocks")->Arg(10'000)->Arg(100'000)->Arg(1'000'000)->Iterations(1);
    });

}  // namespace
