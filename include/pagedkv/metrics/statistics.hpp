#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/metrics/counters.hpp>
#include <pagedkv/policy/locking/parts/contention.hpp>
#include <pagedkv/pool/block_states.hpp>

#include <array>
#include <cstdint>
#include <span>

namespace pagedkv {

/// A snapshot. Exact unless other threads are at work: then a sum over values that change meanwhile. The table below
/// describes every field; counters begin at construction. The peak and the allocations count blocks that a failed
/// operation took and gave back, too.
struct cache_statistics {
  block_counts blocks;
  std::int64_t peak_in_use = 0;
  std::int64_t num_sequences = 0;
  std::int64_t num_pins = 0;
  std::int64_t num_tokens = 0;
  std::int64_t unfilled_slots = 0;
  std::int64_t prompts = 0;
  std::int64_t prompt_blocks = 0;
  std::int64_t hit_blocks = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t evictions = 0;
  std::int64_t invalidations = 0;
  std::int64_t copies = 0;
  std::int64_t refusals = 0;
  std::int64_t blocks_together = 0;
  std::int64_t runs_together = 0;
  std::int64_t blocks_in_runs = 0;
  contention_counts contention;
};

/// Bytes by purpose.
struct memory_profile {
  std::int64_t payload = 0;    // K, V, scales and padding, in the allocator's memory
  std::int64_t pool = 0;       // states, free list, eviction order with its ghosts
  std::int64_t index = 0;      // prefix index with the tokens that confirm hits
  std::int64_t sequences = 0;  // records and block tables

  /// All but the payload.
  [[nodiscard]] std::int64_t metadata() const noexcept { return pool + index + sequences; }
};

namespace detail {

[[nodiscard]] constexpr auto cache_metrics() {
  using enum metric_kind;
  using rows = metrics_builder<cache_statistics>;
  using all = cache_statistics;
  using blocks = block_counts;
  using lost = contention_counts;
  constexpr auto pool = metric_family{gauge, "pool", "blocks", "Blocks of the pool, by state."};
  constexpr auto contention = metric_family{counter, "contention", "", "Collisions between threads, by kind."};
  return std::array{
      rows::row<&all::blocks, &blocks::free>(pool, {"state", "free"}),
      rows::row<&all::blocks, &blocks::in_use>(pool, {"state", "in_use"}),
      rows::row<&all::blocks, &blocks::evictable>(pool, {"state", "evictable"}),
      rows::row<&all::blocks, &blocks::retiring>(pool, {"state", "retiring"}),
      rows::row<&all::peak_in_use>({gauge, "peak_in_use", "blocks", "Most blocks that were in use at once."}),
      rows::row<&all::num_sequences>({gauge, "sequences", "", "Live sequences."}),
      rows::row<&all::num_pins>({gauge, "pins", "", "Live pins."}),
      rows::row<&all::num_tokens>(
          {gauge, "sequence", "tokens", "Tokens in live sequences, shared ones once for each."}),
      rows::row<&all::unfilled_slots>({gauge, "unfilled", "slots", "Slots behind the last token of live sequences."}),
      rows::row<&all::prompts>({counter, "prompts", "", "Sequences created from a prompt."}),
      rows::row<&all::prompt_blocks>({counter, "prompt", "blocks", "Full blocks in prompts."}),
      rows::row<&all::hit_blocks>({counter, "hit", "blocks", "Full blocks in prompts that were cached."}),
      rows::row<&all::hit_tokens>({counter, "hit", "tokens", "Tokens in prompts that were cached."}),
      rows::row<&all::evictions>(
          {counter, "evicted", "blocks", "Evictable blocks that were taken for other contents."}),
      rows::row<&all::invalidations>({counter, "invalidated", "blocks", "Cached blocks that were invalidated."}),
      rows::row<&all::copies>({counter, "copied", "blocks", "Blocks that were copied on write."}),
      rows::row<&all::refusals>({counter, "refusals", "", "Operations that failed for want of blocks."}),
      rows::row<&all::blocks_together>(
          {counter, "allocated_together", "blocks", "Blocks that one allocation took with others."}),
      rows::row<&all::runs_together>(
          {counter, "allocated_runs", "", "Runs of consecutive ids among blocks that were taken together."}),
      rows::row<&all::blocks_in_runs>(
          {counter, "allocated_in_runs", "blocks", "Blocks that were taken in runs of eight or more."}),
      rows::row<&all::contention, &lost::waits>(contention, {"kind", "wait"}),
      rows::row<&all::contention, &lost::retries>(contention, {"kind", "retry"}),
      rows::row<&all::contention, &lost::steals>(contention, {"kind", "steal"}),
  };
}

[[nodiscard]] constexpr auto memory_metrics() {
  using rows = metrics_builder<memory_profile>;
  constexpr auto memory = metric_family{metric_kind::gauge, "memory", "bytes", "Memory of the cache, by purpose."};
  return std::array{
      rows::row<&memory_profile::payload>(memory, {"purpose", "payload"}),
      rows::row<&memory_profile::pool>(memory, {"purpose", "pool"}),
      rows::row<&memory_profile::index>(memory, {"purpose", "index"}),
      rows::row<&memory_profile::sequences>(memory, {"purpose", "sequences"}),
  };
}

}  // namespace detail

/// The tables of a cache's statistics and of its memory.
template <>
inline constexpr auto metrics_of<cache_statistics> = detail::cache_metrics();
template <>
inline constexpr auto metrics_of<memory_profile> = detail::memory_metrics();

static_assert(sizeof(cache_statistics) == metrics_of<cache_statistics>.size() * sizeof(std::int64_t) &&
                  sizeof(memory_profile) == metrics_of<memory_profile>.size() * sizeof(std::int64_t),
              "every field has a row in its table");

}  // namespace pagedkv

namespace pagedkv::detail {

/// Counts the runs of one allocation of several blocks, in the order of the block table, as transfers go through it.
template <class Counts>
void count_runs(Counts& counts, std::span<const block_id> blocks) noexcept {
  constexpr auto least_run = std::size_t{8};
  auto num_runs = std::int64_t{0};
  auto num_in_runs = std::size_t{0};
  auto first = std::size_t{0};
  const auto end_run = [&](std::size_t end) {
    ++num_runs;
    num_in_runs += end - first >= least_run ? end - first : 0;
    first = end;
  };
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    if (to_index(blocks[i]) != to_index(blocks[i - 1]) + 1) {
      end_run(i);
    }
  }
  end_run(blocks.size());
  count<&cache_statistics::blocks_together>(counts, std::ssize(blocks));
  count<&cache_statistics::runs_together>(counts, num_runs);
  count<&cache_statistics::blocks_in_runs>(counts, static_cast<std::int64_t>(num_in_runs));
}

}  // namespace pagedkv::detail
