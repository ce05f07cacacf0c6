#pragma once

#include <pagedkv/cache/record_map.hpp>
#include <pagedkv/core/config.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/detail/random_seed.hpp>
#include <pagedkv/metrics/counters.hpp>
#include <pagedkv/metrics/statistics.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/policy/free_list/concept.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/pool/block_pool.hpp>
#include <pagedkv/prefix/prefix_index.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace pagedkv {

/// A pinned prefix: references that keep its blocks in use.
struct pinned_prefix {
  static constexpr auto unknown_code = error_code::unknown_pin;
  static constexpr auto id_name = "pin id";
  static constexpr auto busy_id_name = "id of a pin that another thread is using";

  block_table blocks;

  [[nodiscard]] table_usage usage() const noexcept { return blocks.usage(0); }
};

/// Everything that a cache knows about blocks, without their K/V. The functions in `cache/operations/` work on it;
/// `kv_cache` takes the locks and hands the bytes to the backend.
template <locking Locking, eviction_policy Eviction, free_list_policy FreeList, block_hash Hash, events Events>
struct cache_state {
  using locking_type = Locking;
  using eviction_type = Eviction;
  using events_type = Events;
  using sequence_type = sequence;
  static constexpr bool layers_differ = false;

  cache_state(const cache_config& valid, Events stream)
      : config(valid),
        pool(config.num_blocks, config.capacity()),
        index(config.capacity(), config.block_size, config.hash_seed != 0 ? config.hash_seed : detail::random_seed()),
        sequences(config.max_sequences),
        pins(config.max_sequences),
        events(std::move(stream)) {}

  /// Where blocks are found by their tokens: a block is a node.
  [[nodiscard]] const auto& node_index() const noexcept { return index; }
  [[nodiscard]] std::size_t tokens_per_node() const noexcept { return block_size(); }
  [[nodiscard]] std::size_t index_bytes() const noexcept { return index.metadata_bytes(); }
  [[nodiscard]] static constexpr bool commits_only_publish() noexcept { return true; }
  /// The components are for as many threads as the locking policy says.
  [[nodiscard]] static detail::no_guard guard_nodes() noexcept { return {}; }

  [[nodiscard]] std::size_t block_size() const noexcept { return static_cast<std::size_t>(config.block_size); }
  [[nodiscard]] std::size_t blocks_for(std::int64_t num_tokens) const noexcept {
    return (static_cast<std::size_t>(num_tokens) + block_size() - 1) / block_size();
  }
  /// Length of a block table for all tokens that a sequence may have; not more than the capacity.
  [[nodiscard]] std::size_t blocks_expected(const sequence_options& options) const noexcept {
    return std::min(blocks_for(options.expected_tokens), static_cast<std::size_t>(config.capacity()));
  }
  [[nodiscard]] timestamp time() const noexcept { return static_cast<timestamp>(now.load(std::memory_order_relaxed)); }

  /// The link that a sequence's block at `position` continues or would continue. All blocks before it are published.
  [[nodiscard]] chain_link link_before(const sequence& s, std::size_t position) const noexcept {
    return position == s.blocks.num_dropped() ? s.window_start : index.link(s.blocks[position - 1]);
  }

  /// All or nothing; counts evictions, refusals and the peak. `own`: see `refuse`.
  [[nodiscard]] result<void> allocate(std::span<block_id> blocks, const own_blocks& own = {}) noexcept {
    auto num_evicted = std::int64_t{0};
    auto watched = chains();
    const auto done = pool.allocate(blocks, watched, time(), num_evicted);
    if (!done) {
      return refuse(blocks.size(), pool.num_available(own.shared), own);
    }
    if (num_evicted != 0) {
      detail::count<&cache_statistics::evictions>(counts, num_evicted);
    }
    if constexpr (!Locking::family::concurrent) {
      note_peak();
    }
    if (blocks.size() > 1) {
      detail::count_runs(counts, blocks);
    }
    return {};
  }

  /// The error of a refusal. Blocks that other threads made available since do not count. `error::step` is the step
  /// whose retirement provides the missing blocks: retiring ones except shared ones, and the block that is rewritten,
  /// which needs no copy once its step has retired.
  [[nodiscard]] error refusal(std::size_t num_needed, std::int64_t num_available,
                              const own_blocks& own) const noexcept {
    const auto needed = static_cast<std::int64_t>(num_needed);
    const auto available = std::min(num_available, needed - 1);
    const auto coming = pool.step_that_frees(needed - available, own);
    auto refused =
        error{error_code::capacity_exhausted, "number of blocks needed, more than there are now,", needed, available};
    refused.step = coming.step;
    if (coming.step == step_id{}) {
      refused.limit = std::min(available + coming.num_waiting, needed - 1);
    }
    return refused;
  }

  /// The error of an operation that is refused: counted and reported.
  [[nodiscard]] error refuse(std::size_t num_needed, std::int64_t num_available, const own_blocks& own) noexcept {
    const auto needed = static_cast<std::int64_t>(num_needed);
    note_refusal(needed, std::min(num_available, needed - 1));
    return refusal(num_needed, num_available, own);
  }

  /// More blocks than the pool has, whatever is released.
  [[nodiscard]] error exceeds_pool(std::size_t num_needed) const noexcept {
    return {error_code::never_fits, "number of blocks needed, more than the pool has,",
            static_cast<std::int64_t>(num_needed), pool.size()};
  }
  /// The error of an operation that is refused: counted and reported.
  [[nodiscard]] error never_fits(std::size_t num_needed) noexcept {
    note_refusal(static_cast<std::int64_t>(num_needed), pool.size());
    return exceeds_pool(num_needed);
  }

  /// The prefix index for the pool, which reports what is evicted: after the last hit on it, and before its id has
  /// other contents.
  struct watched_index {
    cache_state& state;

    [[nodiscard]] bool has_children(block_id block) const noexcept { return state.index.has_children(block); }
    [[nodiscard]] std::uint32_t num_children(block_id block) const noexcept { return state.index.num_children(block); }
    [[nodiscard]] block_id parent(block_id block) const noexcept { return state.index.parent(block); }
    template <class Stays>
    [[nodiscard]] bool has_twin(block_id block, Stays&& stays) const noexcept {
      return state.index.has_twin(block, stays);
    }
    [[gnu::always_inline]] void prefetch_victims(block_id next, block_id then) const noexcept {
      state.index.prefetch_victims(next, then);
    }
    void detach(block_id block) noexcept { state.index.detach(block); }
    void attach(block_id block) noexcept { state.index.attach(block); }
    /// Losing one block makes no other useless.
    [[nodiscard]] static std::int64_t free_useless() noexcept { return 0; }
    void withdraw(block_id block) noexcept {
      if (state.index.withdraw(block)) {
        detail::count<&cache_statistics::invalidations>(state.counts, 1);
        state.report_eviction(block);
      }
    }
    void erase(block_id block) noexcept {
      if (!state.index.withdrawn(block)) {
        state.report_eviction(block);
      }
      state.index.erase(block);
    }
  };
  static_assert(pruned_chains<watched_index> && linked_chains<watched_index>);

  [[nodiscard]] watched_index chains() noexcept { return {*this}; }
  /// Chains without events.
  [[nodiscard]] auto& silent_chains() noexcept { return index; }

  template <class Freed>
  void free_useless(std::uint32_t, Freed&&) const noexcept {}

  [[nodiscard]] result<void> retire_step(step_id step) noexcept { return pool.retire_step(step); }

  void report_eviction(block_id block) noexcept {
    detail::report<event_kind::evicted>(events,
                                        [&] { return cache_event{.block = block, .hash = index.link(block).hash}; });
  }

  /// Where threads share the counts, only at creation and before releases, so that appending need not sum them up.
  void note_peak() noexcept {
    const auto in_use = pool.counts().in_use;
    auto highest = peak_in_use.load(std::memory_order_relaxed);
    while (in_use > highest &&
           !peak_in_use.compare_exchange_weak(highest, in_use, std::memory_order_relaxed, std::memory_order_relaxed)) {
    }
  }

  cache_config config;
  block_pool<Locking, Eviction, FreeList> pool;
  prefix_index<Locking, Hash> index;
  record_map<sequence, Locking> sequences;
  record_map<pinned_prefix, Locking> pins;
  counters<cache_statistics, Locking> counts;
  typename Locking::template atomic<std::int64_t> peak_in_use{0};
  typename Locking::template atomic<std::int64_t> now{0};
  typename Locking::template atomic<bool> resizing{false};
  [[no_unique_address]] Events events;

 private:
  void note_refusal(std::int64_t num_needed, std::int64_t num_available) noexcept {
    detail::count<&cache_statistics::refusals>(counts, 1);
    detail::report<event_kind::refused>(
        events, [&] { return cache_event{.num_blocks = num_needed, .num_available = num_available}; });
  }
};

}  // namespace pagedkv
