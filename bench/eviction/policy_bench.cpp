#include "../support/over_policies.hpp"

#include <pagedkv/policy/eviction/all.hpp>

#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

using namespace pagedkv;

namespace {

constexpr auto take = [](block_id, auto...) { return eviction_answer::taken; };

constexpr auto num_choices = std::size_t{1} << 16;

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
  auto choices = std::vector<block_id>(num_choices);
  for (auto& choice : choices) {
    choice = to_block(random() % static_cast<std::uint64_t>(num_blocks));
  }
  return choices;
}

/// A block is hit and released again.
template <eviction_policy Policy>
void hit(benchmark::State& state) {
  const auto num_blocks = static_cast<std::int32_t>(state.range(0));
  auto policy = Policy{num_blocks};
  fill(policy, num_blocks);
  const auto choices = choices_below(num_blocks);
  auto i = std::size_t{0};
  for (auto _ : state) {
    const auto block = choices[i++ % num_choices];
    policy.remove(block);
    policy.insert(block, release_of(to_index(block)));
  }
}

/// A block is evicted and its successor published.
template <eviction_policy Policy>
void turn_over(benchmark::State& state, Policy& policy) {
  auto content = std::uint64_t{1} << 32;
  for (auto _ : state) {
    const auto block = policy.victim(take, timestamp{});
    policy.insert(block, release_of(content++));
  }
  state.counters["bytes_per_block"] =
      static_cast<double>(policy.metadata_bytes()) / static_cast<double>(state.range(0));
}

template <eviction_policy Policy>
void victim(benchmark::State& state) {
  const auto num_blocks = static_cast<std::int32_t>(state.range(0));
  auto policy = Policy{num_blocks};
  fill(policy, num_blocks);
  turn_over(state, policy);
}

/// The same while 99 of 100 blocks are in use.
template <eviction_policy Policy>
void victim_among_pinned(benchmark::State& state) {
  const auto num_blocks = static_cast<std::int32_t>(state.range(0));
  auto policy = Policy{num_blocks};
  fill(policy, num_blocks);
  for (auto i = 0; i < num_blocks; ++i) {
    if (i % 100 != 0) {
      policy.remove(block_id{i});
    }
  }
  turn_over(state, policy);
}

template <class... Policies>
auto those_that_evict(policy_list<Policies...>) {
  return (policy_list<>{} + ... + std::conditional_t<evicts<Policies>, policy_list<Policies>, policy_list<>>{});
}
using evicting = decltype(those_that_evict(all_evictions{}));

constexpr auto in_sizes = [](auto, benchmark::internal::Benchmark* benchmark) {
  benchmark->Arg(10'000)->Arg(100'000)->Arg(1'000'000);
};

}  // namespace

#define PAGEDKV_FOR_ALL_EVICTIONS(function)                                           \
  [[maybe_unused]] static const bool function##_is_registered = bench::register_over( \
      evicting{}, #function,                                                          \
      []<class Policy>(std::type_identity<Policy>, benchmark::State& state) { function<Policy>(state); }, in_sizes)

PAGEDKV_FOR_ALL_EVICTIONS(hit);
PAGEDKV_FOR_ALL_EVICTIONS(victim);
PAGEDKV_FOR_ALL_EVICTIONS(victim_among_pinned);
