#include "../support/over_policies.hpp"
#include "../support/timed_allocator.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/allocator/reserving_allocator.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/all.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

// A pool of 8 GiB that grows or shrinks by 1 GiB. Times are the best of several; `own` is the caller's time beyond the
// allocator's calls of the system. No K/V is touched or moved: that takes the time of a copy.

namespace {

using namespace pagedkv;

constexpr auto repetitions = 9;
constexpr auto blocks_of_prompt = 16;

struct unmoved_backend : host_backend {
  static constexpr std::string_view name = "unmoved";

  [[nodiscard]] result<void> move_blocks(const block_storage_view&, std::span<const block_pair>, stream) noexcept {
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

/// A sequence holds half of the blocks that stay; the others are free, or hold cached prompts.
template <class Locking>
void change_size(benchmark::State& state) {
  const auto block_bytes = static_cast<std::int32_t>(state.range(0));
  const bool cached = state.range(1) != 0;
  const auto large = static_cast<std::int32_t>((std::int64_t{8} << 30) / block_bytes);
  const auto small = large / 8 * 7;
  auto config = cache_config{.num_blocks = large, .max_blocks = 2 * large, .num_layers = 32, .num_kv_heads = 8};
  config.head_dim = block_bytes / (32 * 8 * 16 * 2 * 2);
  auto in_system = 0.0;
  using memory = bench::timed_allocator<reserving_allocator>;
  auto cache = kv_cache<Locking, clock_sweep, memory, unmoved_backend>{config, memory{in_system}};
  auto prompt = std::vector<token>(static_cast<std::size_t>(small / 2 * 16));
  std::iota(prompt.begin(), prompt.end(), 0);
  cache.create_sequence(prompt).value();

  auto cached_prompt = std::vector<token>(blocks_of_prompt * 16);
  auto next_prompt = token{-1};
  auto grown = change{};
  auto shrunk = change{};
  const auto timed = [&](std::int32_t num_blocks, change& to) {
    in_system = 0.0;
    const auto start = std::chrono::steady_clock::now();
    const auto done = cache.resize(num_blocks);
    const auto end = std::chrono::steady_clock::now();
    to.note(std::chrono::duration<double>(end - start).count(), in_system, done ? done->size() : 0);
    if (!done) {
      state.SkipWithError(done.error().message().c_str());
    }
  };
  for (auto _ : state) {
    for (auto i = 0; i < repetitions; ++i) {
      while (cached && cache.num_free_blocks() >= blocks_of_prompt) {
        std::ranges::fill(cached_prompt, next_prompt--);
        const auto id = cache.create_sequence(cached_prompt).value().id;
        cache.commit(id, std::ssize(cached_prompt)).value();
        cache.release(id).value();
      }
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

}  // namespace
