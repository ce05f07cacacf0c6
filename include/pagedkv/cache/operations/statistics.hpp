#pragma once

#include <pagedkv/cache/cache_state.hpp>

#include <algorithm>
#include <cstdint>

namespace pagedkv {

/// A snapshot. Exact unless other threads are at work: then a sum over what changes meanwhile.
struct cache_statistics {
  block_counts blocks;
  std::int64_t peak_in_use = 0;     // blocks
  std::int64_t num_sequences = 0;   // alive
  std::int64_t num_pins = 0;        // alive
  std::int64_t num_tokens = 0;      // in live sequences; shared ones count once for each
  std::int64_t unfilled_slots = 0;  // waste: slots behind the last token of live sequences
  std::int64_t prompts = 0;         // sequences created from tokens; this and all below since construction
  std::int64_t prompt_blocks = 0;   // full blocks in those
  std::int64_t hit_blocks = 0;      // of those, found in the prefix index
  std::int64_t hit_tokens = 0;
  std::int64_t evictions = 0;    // blocks
  std::int64_t copies = 0;       // blocks copied on write
  std::int64_t refusals = 0;     // operations that failed for want of blocks
  contention_counts contention;  // of all caches with the same locking policy; zero unless that counts
};

/// Bytes by purpose.
struct memory_profile {
  std::int64_t payload = 0;    // K, V, scales and padding, in the allocator's memory
  std::int64_t pool = 0;       // states, free list, eviction order with its ghosts
  std::int64_t index = 0;      // prefix index with the tokens that confirm hits
  std::int64_t sequences = 0;  // records and block tables

  [[nodiscard]] std::int64_t metadata() const noexcept { return pool + index + sequences; }
};

namespace detail {

template <class State>
[[nodiscard]] cache_statistics take_statistics(const State& state) {
  auto taken = cache_statistics{};
  taken.blocks = state.pool.counts();
  taken.peak_in_use = std::max(state.peak_in_use.load(std::memory_order_relaxed), taken.blocks.in_use);
  taken.num_sequences = state.sequences.size();
  taken.num_pins = state.pins.size();
  state.sequences.for_each_usage([&](const table_usage& used) {
    taken.num_tokens += used.num_tokens;
    taken.unfilled_slots += used.num_blocks * state.config.block_size - used.num_tokens;
  });
  taken.prompts = state.counts.get(counter::prompts);
  taken.prompt_blocks = state.counts.get(counter::prompt_blocks);
  taken.hit_blocks = state.counts.get(counter::hit_blocks);
  taken.hit_tokens = state.counts.get(counter::hit_tokens);
  taken.evictions = state.counts.get(counter::evictions);
  taken.copies = state.counts.get(counter::copies);
  taken.refusals = state.counts.get(counter::refusals);
  taken.contention = State::locking_type::contention::counts();
  return taken;
}

template <class State>
[[nodiscard]] memory_profile profile_metadata(const State& state) {
  auto profile = memory_profile{};
  profile.pool = static_cast<std::int64_t>(state.pool.metadata_bytes());
  profile.index = static_cast<std::int64_t>(state.index.metadata_bytes());
  profile.sequences = static_cast<std::int64_t>(state.sequences.metadata_bytes() + state.pins.metadata_bytes());
  const auto add_table = [&](const table_usage& used) { profile.sequences += used.bytes; };
  state.sequences.for_each_usage(add_table);
  state.pins.for_each_usage(add_table);
  return profile;
}

}  // namespace detail

}  // namespace pagedkv
