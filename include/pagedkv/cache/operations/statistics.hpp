#pragma once

#include <pagedkv/cache/cache_state.hpp>
#include <pagedkv/metrics/statistics.hpp>

#include <algorithm>
#include <cstdint>

namespace pagedkv::detail {

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
  state.counts.write_to(taken);
  taken.contention = state.pool.contention();
  taken.contention += state.sequences.contention();
  taken.contention += state.pins.contention();
  return taken;
}

/// Without payload.
template <class State>
[[nodiscard]] memory_profile profile_metadata(const State& state) {
  auto profile = memory_profile{};
  profile.pool = static_cast<std::int64_t>(state.pool.metadata_bytes());
  profile.index = static_cast<std::int64_t>(state.index_bytes());
  profile.sequences = static_cast<std::int64_t>(state.sequences.metadata_bytes() + state.pins.metadata_bytes());
  const auto add_table = [&](const table_usage& used) { profile.sequences += used.bytes; };
  state.sequences.for_each_usage(add_table);
  state.pins.for_each_usage(add_table);
  return profile;
}

}  // namespace pagedkv::detail
