#pragma once

#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/metrics/statistics.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pagedkv::detail::groups {

template <class State>
[[nodiscard]] cache_statistics take_statistics(const State& state) {
  auto taken = cache_statistics{};
  taken.blocks = state.pool.counts();
  taken.peak_in_use = state.peak_in_use;
  taken.num_sequences = state.sequences.size();
  taken.num_pins = state.pins.size();
  state.sequences.for_each([&](const auto& cell) {
    taken.num_tokens += cell.record.num_tokens;
    for (std::size_t g = 0; g < state.num_groups(); ++g) {
      if (state.holds_tokens(g)) {
        const auto room = static_cast<std::int64_t>(cell.record.tables[g].end()) * state.block_size(g);
        taken.unfilled_slots += std::max(room - cell.record.num_tokens, std::int64_t{0});
      }
    }
  });
  state.counts.write_to(taken);
  return taken;
}

}  // namespace pagedkv::detail::groups
