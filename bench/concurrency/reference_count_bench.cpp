#include "policies.hpp"
#include "scoreboard.hpp"

#include <pagedkv/policy/free_list/all.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::bench;

constexpr auto blocks_per_thread = std::size_t{64};
constexpr auto num_counted = 16 * blocks_per_thread;

struct no_chains {
  [[nodiscard]] bool has_children(block_id) const noexcept { return false; }
  [[nodiscard]] bool has_twin(block_id, auto&&) const noexcept { return false; }
  void detach(block_id) noexcept {}
  void attach(block_id) noexcept {}
  void erase(block_id) noexcept {}
  void withdraw(block_id) noexcept {}
};

/// Each thread takes and releases references on blocks in use, with the mutex that the policy's cache would hold: all
/// threads on the same blocks, or each on its own.
template <locking Locking, bool Shared>
void reference(benchmark::State& state) {
  using pool_type = block_pool<Locking, clock_sweep, any_free_block>;
  static auto pool = std::unique_ptr<pool_type>{};
  static auto mutex = std::unique_ptr<typename Locking::cache_mutex>{};
  static auto blocks = std::vector<block_id>{};
  if (state.thread_index() == 0) {
    pool = std::make_unique<pool_type>(static_cast<std::int32_t>(num_counted));
    mutex = std::make_unique<typename Locking::cache_mutex>();
    blocks.resize(num_counted);
    auto chains = no_chains{};
    auto num_evicted = std::int64_t{0};
    if (!pool->allocate(blocks, chains, timestamp{0}, num_evicted)) {
      state.SkipWithError("the pool is full");
    }
  }
  const auto first = Shared ? 0 : blocks_per_thread * static_cast<std::size_t>(state.thread_index());
  auto next = std::size_t{0};
  auto score = scoreboard{state, Shared ? "reference shared" : "reference own", Locking::name};
  for (auto _ : state) {
    const auto block = blocks[first + next++ % blocks_per_thread];
    {
      const auto guard = exclusive_guard{*mutex};
      benchmark::DoNotOptimize(pool->reference(block));
    }
    const auto guard = exclusive_guard{*mutex};
    pool->release(block, block_release{});
  }
  score.finish(1);
}

template <locking Locking>
void reference_own_blocks(benchmark::State& state) {
  reference<Locking, false>(state);
}

template <locking Locking>
void reference_shared_blocks(benchmark::State& state) {
  reference<Locking, true>(state);
}

}  // namespace

PAGEDKV_FOR_ALL_POLICIES(reference_own_blocks);
PAGEDKV_FOR_ALL_POLICIES(reference_shared_blocks);
