#include "../support/latencies.hpp"

#include <pagedkv/router/keys.hpp>
#include <pagedkv/router/llm_d_keys.hpp>
#include <pagedkv/router/worker_feed.hpp>

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

using namespace pagedkv;

namespace {

constexpr auto block_size = std::size_t{16};
constexpr auto num_workers = std::int32_t{32};
constexpr auto chain_length = std::size_t{128};  // blocks of a prompt
constexpr auto num_chains = std::size_t{512};    // that a worker holds

std::array<token, block_size> tokens_of(std::size_t chain, std::size_t block) {
  auto tokens = std::array<token, block_size>{};
  for (std::size_t i = 0; i < block_size; ++i) {
    tokens[i] = static_cast<token>((chain * 7'919 + block * 127 + i) % 128'000);
  }
  return tokens;
}

std::uint64_t hash_of(std::size_t chain, std::size_t block) {
  return (chain * chain_length + block + 1) * 0x9e37'79b9'7f4a'7c15U;
}

template <class Keys>
Keys make_keys() {
  if constexpr (std::is_same_v<Keys, llm_d_keys>) {
    return Keys{"model"};
  } else if constexpr (std::is_same_v<Keys, cache_keys>) {
    return Keys{1};
  } else {
    return Keys{};
  }
}

template <class Feed>
void store(Feed& feed, std::size_t chain, std::size_t block) {
  const auto parent = block == 0 ? std::nullopt : std::optional{hash_of(chain, block - 1)};
  feed.stored(hash_of(chain, block), parent, tokens_of(chain, block));
}

worker_index make_index() {
  return worker_index{{.num_blocks = static_cast<std::int64_t>(num_workers * num_chains * chain_length),
                       .num_workers = num_workers}};
}

/// A worker evicts its oldest prompt, deepest block first, and stores a new one.
template <class Keys, class Call>
void turn_over(worker_feed<Keys>& feed, std::size_t chain, const Call& each) {
  for (auto block = chain_length; block-- > 0;) {
    each([&] { feed.removed(hash_of(chain, block)); });
  }
  for (std::size_t block = 0; block < chain_length; ++block) {
    each([&] { store(feed, chain + num_chains, block); });
  }
}

/// Blocks that one of 32 workers adds and removes, without a feed's bookkeeping.
void operations(benchmark::State& state) {
  auto index = make_index();
  constexpr auto num_held = num_chains * chain_length;
  auto next = std::size_t{0};
  for (; next < num_held; ++next) {
    index.add(worker_id{7}, hash_of(0, next));
  }
  for (auto _ : state) {
    index.remove(worker_id{7}, hash_of(0, next - num_held));
    index.add(worker_id{7}, hash_of(0, next));
    ++next;
  }
  state.SetItemsProcessed(2 * state.iterations());
}

/// Events of one worker with 65,536 blocks, by their number per second.
template <class Keys>
void events(benchmark::State& state) {
  auto index = make_index();
  auto feed = worker_feed{index, worker_id{0}, make_keys<Keys>()};
  for (std::size_t chain = 0; chain < num_chains; ++chain) {
    for (std::size_t block = 0; block < chain_length; ++block) {
      store(feed, chain, block);
    }
  }
  auto chain = std::size_t{0};
  for (auto _ : state) {
    turn_over(feed, chain++, [](const auto& apply) { apply(); });
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(2 * chain_length));
}

/// The same, with the time of each event.
template <class Keys>
void event_latency(benchmark::State& state) {
  auto index = make_index();
  auto feed = worker_feed{index, worker_id{0}, make_keys<Keys>()};
  for (std::size_t chain = 0; chain < num_chains; ++chain) {
    for (std::size_t block = 0; block < chain_length; ++block) {
      store(feed, chain, block);
    }
  }
  auto chain = std::size_t{0};
  auto times = bench::latencies{};
  for (auto _ : state) {
    turn_over(feed, chain++, [&](const auto& apply) {
      times.measure([&] {
        apply();
        return 0;
      });
    });
  }
  times.report(state);
}

/// How much of a prompt of 128 blocks each of 32 workers holds, keys included; items are blocks.
template <class Keys>
void query(benchmark::State& state) {
  auto index = make_index();
  auto feeds = std::vector<std::unique_ptr<worker_feed<Keys>>>{};
  for (auto worker = 0; worker < num_workers; ++worker) {
    feeds.push_back(std::make_unique<worker_feed<Keys>>(index, worker_id{worker}, make_keys<Keys>()));
    for (std::size_t chain = 0; chain < num_chains; ++chain) {
      const auto length = (static_cast<std::size_t>(worker) * 5 + chain) % (chain_length + 1);
      for (std::size_t block = 0; block < length; ++block) {
        store(*feeds.back(), chain, block);
      }
    }
  }
  auto prompts = std::vector<std::vector<token>>(num_chains);
  for (std::size_t chain = 0; chain < num_chains; ++chain) {
    for (std::size_t block = 0; block < chain_length; ++block) {
      const auto tokens = tokens_of(chain, block);
      prompts[chain].insert(prompts[chain].end(), tokens.begin(), tokens.end());
    }
  }
  const auto scheme = make_keys<Keys>();
  auto keys = std::array<std::uint64_t, chain_length>{};
  auto held = std::array<std::int64_t, num_workers>{};
  auto chain = std::size_t{0};
  auto times = bench::latencies{};
  for (auto _ : state) {
    times.measure([&] {
      const auto count = prompt_keys(scheme, prompts[chain++ % num_chains], block_size, keys);
      index.num_held(std::span(keys).first(count), held);
      return count;
    });
    benchmark::DoNotOptimize(held);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(chain_length));
  times.report(state);
}

BENCHMARK(operations);
BENCHMARK(events<cache_keys>);
BENCHMARK(events<dynamo_keys>);
BENCHMARK(events<llm_d_keys>);
BENCHMARK(event_latency<cache_keys>);
BENCHMARK(event_latency<dynamo_keys>);
BENCHMARK(query<cache_keys>);
BENCHMARK(query<dynamo_keys>);
BENCHMARK(query<llm_d_keys>);

}  // namespace
