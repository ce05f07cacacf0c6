#pragma once

#include <pagedkv/cache/operations/parts/check_group.hpp>
#include <pagedkv/cache/operations/parts/run_facts.hpp>
#include <pagedkv/cache/operations/slot_mapping.hpp>
#include <pagedkv/cache/record_access.hpp>
#include <pagedkv/sequence/batch_view.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::detail {

/// Updates a batch with a row for each of these sequences, once more for as long as the locking policy waits for
/// sequences that another thread changes.
template <class State, class Batch>
[[nodiscard]] result<void> update(const State& state, Batch& batch, std::span<const sequence_id> ids, std::size_t group,
                                  std::int64_t num_ahead) noexcept {
  if (auto checked = check_group(state, group); !checked) {
    return checked;
  }
  if (auto checked = check_slots_ahead(num_ahead); !checked) {
    return checked;
  }
  const auto visit_row = [&](std::size_t i, auto&& use) {
    return visit_sequence(state, ids[i], [&](const sequence& s) -> result<void> {
      const auto blocks = s.blocks.all();  // without those that only have slots ahead
      const auto shown = num_ahead == 0 ? s.num_tokens : std::min(num_slots(state, s), s.num_tokens + num_ahead);
      const auto size = s.num_reserved > shown ? state.blocks_for(shown) : blocks.size();
      return use(batch_row{ids[i], s.blocks.version(), shown, blocks.first(size)});
    });
  };
  auto updated = batch.update(ids.size(), state.config.block_size, visit_row);
  while (State::locking_type::waits_for_sequence && !updated && updated.error().code == error_code::sequence_busy) {
    updated = batch.update(ids.size(), state.config.block_size, visit_row);
  }
  return updated;
}

}  // namespace pagedkv::detail
