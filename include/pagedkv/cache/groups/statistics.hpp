#pragma once

#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/metrics/statistics.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pagedkv::detail {

template <layered State>
[[nodiscard]] cache_statistics take_statistics(const State& state) {
  auto taken = cache_statistics{};
  {
    const auto guard = state.guard_nodes();
    taken.blocks = state.pool.counts();
    taken.peak_in_use = state.peak_in_use;
  }
  taken.num_sequences = state.sequences.size();
  taken.num_pins = state.pins.size();
  const auto add = [&](const group_sequence& s) -> result<void> {
    taken.num_tokens += s.num_tokens;
    for (std::size_t g = 0; g < state.num_groups(); ++g) {
      if (state.holds_tokens(g)) {
        const auto room = static_cast<std::int64_t>(s.tables[g].end()) * state.block_size(g);
        taken.unfilled_slots += std::max(room - s.num_tokens, std::int64_t{0});
      }
    }
    return {};
  };
  state.sequences.for_each([&](const auto& open) {
    static_cast<void>(visit_sequence(state, sequence_id{state.sequences.id_of(open)}, add));  // unless it has ended
  });
  state.counts.write_to(taken);
  taken.contention = state.pool.contention();
  taken.contention += state.sequences.contention();
  taken.contention += state.pins.contention();
  taken.contention += state.contention();
  return taken;
}

}  // namespace pagedkv::detail
