#include "../support/over_policies.hpp"
#include "../support/timed_allocator.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/allocator/page_allocators.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/all.hpp>
#include <pagedkv/storage/memory_plan.hpp>
#include <pagedkv/storage/sizing.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

// A pool of 8 GiB that grows or shrinks by 1 GiB. Times are the best of several; `own` is the caller's time beyond the
// allocator's calls of the system. No K/V is touched or moved: that takes the time of a copy.

namespace resize_bench {

using namespace pagedkv;

constexpr auto repetitions = 9;
constexpr auto blocks_of_prompt = 16;

struct unmoved_backend : host_backend {
  static constexpr std::string_view name = "unmoved";

  [[nodiscard]] result<void> copy_blocks(const block_storage_view&, std::span<const block_pair>, stream_type) noexcept {
    return {};
  }
  [[nodiscard]] result<void> move_blocks(const block_storage_view&, std::span<const block_pair>, stream_type) noexcept {
    return {};
  }
};

struct change {
  double whole = 1e9;
  double own = 1e9;
  std::size_t num_moves = 0;  // at most

  void note(double total, double in_system, std::size_t moves) {
    whole = std::min(whole, total);
    own = std::min(own, total - in_system);
    num_moves = std::max(num_moves, moves);
  }
};

/// Shrinks and grows a cache by 1 GiB; `fill()` fills free blocks with cached prompts.
template <class Cache, class Fill>
void measure(benchmark::State& state, Cache& cache, const double& in_system, std::int32_t small, Fill fill) {
  const auto large = cache.num_blocks();
  auto grown = change{};
  auto shrunk = change{};
  const auto timed = [&](std::int32_t num_blocks, change& to) {
    const auto before = in_system;
    const auto start = std::chrono::steady_clock::now();
    const auto done = cache.resize(num_blocks);
    const auto end = std::chrono::steady_clock::now();
    to.note(std::chrono::duration<double>(end - start).count(), in_system - before, done ? done->size() : 0);
    if (!done) {
      state.SkipWithError(done.error().message().c_str());
    }
  };
  for (auto _ : state) {
    for (auto i = 0; i < repetitions; ++i) {
      fill();
      timed(small, shrunk);
      timed(large, grown);
    }
  }
  state.counters["grow_us"] = grown.whole * 1e6;
  state.counters["grow_own_us"] = grown.own * 1e6;
  state.counters["shrink_us"] = shrunk.whole * 1e6;
  state.counters["shrink_own_us"] = shrunk.own * 1e6;
  state.counters["moves"] = static_cast<double>(shrunk.num_moves);
}

constexpr auto pool_bytes = std::int64_t{8} << 30;

using memory = bench::timed_allocator<reserving_allocator>;

/// A sequence holds half of the blocks that stay; the others are free, or hold cached prompts.
template <class Locking>
void change_size(benchmark::State& state) {
  const auto block_bytes = static_cast<std::int32_t>(state.range(0));
  const bool cached = state.range(1) != 0;
  const auto large = static_cast<std::int32_t>(pool_bytes / block_bytes);
  const auto small = large / 8 * 7;
  auto config = cache_config{.num_blocks = large, .max_blocks = 2 * large, .num_layers = 32, .num_kv_heads = 8};
  config.head_dim = block_bytes / (32 * 8 * 16 * 2 * 2);
  auto in_system = 0.0;
  auto cache = kv_cache<Locking, clock_sweep, memory, unmoved_backend>{config, memory{in_system}};
  auto prompt = std::vector<token>(static_cast<std::size_t>(small / 2 * 16));
  std::iota(prompt.begin(), prompt.end(), 0);
  cache.create_sequence(prompt).value();

  auto cached_prompt = std::vector<token>(blocks_of_prompt * 16);
  auto next_prompt = token{-1};
  measure(state, cache, in_system, small, [&] {
    while (cached && cache.num_free_blocks() >= blocks_of_prompt) {
      std::ranges::fill(cached_prompt, next_prompt--);
      const auto id = cache.create_sequence(cached_prompt).value().id;
      cache.commit(id, std::ssize(cached_prompt)).value();
      cache.release(id).value();
    }
  });
}

struct model {
  const char* name;
  group_list groups;
};
constexpr auto models = std::array{model{"window", presets::gpt_oss_120b}, model{"state", presets::qwen3_next_80b}};

/// The same for a cache with groups of these models, with sequences of 1,024 tokens.
template <class Locking>
void change_size_of_groups(benchmark::State& state) {
  const auto& [name, groups] = models[static_cast<std::size_t>(state.range(0))];
  const bool cached = state.range(1) != 0;
  auto config = cache_config{.num_blocks = 1, .max_sequences = 4096, .groups = groups};
  using cache_type = group_cache<Locking, clock_sweep, memory, unmoved_backend>;
  const auto element = size_of_element<typename cache_type::element_type>;
  config.num_blocks = static_cast<std::int32_t>(
      pool_bytes / plan_memory(groups, element, config.block_size).value().block_bytes);
  config.max_blocks = 2 * config.num_blocks;
  const auto small = config.num_blocks / 8 * 7;
  auto in_system = 0.0;
  auto cache = cache_type{config, memory{in_system}};
  auto prompt = std::vector<token>(1024);
  auto next_prompt = token{0};
  const auto create = [&] {
    std::ranges::fill(prompt, next_prompt++);
    const auto made = cache.create_sequence(prompt);
    if (made) {
      const auto saved = cache.next_saved_length(made->id).value();
      cache.commit(made->id, std::min(saved, std::ssize(prompt))).value();
      cache.commit(made->id, std::ssize(prompt)).value();
    }
    return made;
  };
  while (cache.statistics().blocks.in_use < small / 2) {
    create().value();
  }
  const auto most = cache.statistics().blocks.in_use;
  measure(state, cache, in_system, small, [&] {
    while (cached && cache.num_free_blocks() > most / 16) {
      cache.release(create().value().id).value();
    }
  });
  state.SetLabel(name);
  state.counters["blocks"] = config.num_blocks;
}

const auto registered = bench::register_over(
    all_lockings{}, "change_size", []<class Locking>(std::type_identity<Locking>, benchmark::State& state) {
      change_size<Locking>(state);
    },
    []<class Locking>(std::type_identity<Locking>, benchmark::internal::Benchmark* each) {
      each->ArgNames({"block_bytes", "cached"})
          ->ArgsProduct({{2 << 20, 256 << 10}, {0, 1}})
          ->Iterations(1)
          ->Unit(benchmark::kMicrosecond);
    });
const auto registered_groups = bench::register_over(
    policy_list<single_thread, rw_lock, sharded_mutex>{}, "change_size_of_groups",
    []<class Locking>(std::type_identity<Locking>, benchmark::State& state) { change_size_of_groups<Locking>(state); },
    []<class Locking>(std::type_identity<Locking>, benchmark::internal::Benchmark* each) {
      each->ArgNames({"model", "cached"})->ArgsProduct({{0, 1}, {0, 1}})->Iterations(1)->Unit(benchmark::kMicrosecond);
    });

}  // namespace resize_bench
