#pragma once

#include <pagedkv/cache/admit.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

namespace pagedkv::detail {

/// Counts the blocks whose references all come from the tables that `visit_tables(add)` passes to `add`, without those
/// that a prompt would share.
template <class State, class VisitTables>
[[nodiscard]] result<std::int64_t> gain_of_releasing(State& state, std::span<const token> tokens, salt tag,
                                                     VisitTables&& visit_tables) noexcept {
  if (state.pool.step_in_flight()) {
    return std::int64_t{0};
  }
  const auto no_memory = error{error_code::out_of_memory, "number of blocks in the pool", state.config.num_blocks};
  try {
    auto blocks = std::vector<block_id>{};
    auto complete = true;
    visit_tables([&](std::span<const block_id> held) -> result<void> {
      // Nothing may be thrown through the visit of a sequence.
      try {
        blocks.insert(blocks.end(), held.begin(), held.end());
      } catch (const std::bad_alloc&) {
        complete = false;
      }
      return {};
    });
    if (!complete) {
      return no_memory;
    }
    std::ranges::sort(blocks);

    // As in `admit`, the last token is left to compute.
    const auto max_shared = tokens.empty() ? 0 : (tokens.size() - 1) / state.block_size();
    auto shared = std::vector<block_id>{};
    shared.reserve(max_shared);
    const auto hold = look(state);
    match_chain(state.index, state.index.root(tag), tokens, state.block_size(), max_shared, hold, [&](block_id block) {
      shared.push_back(block);
      hold.drop(block);
    });
    std::ranges::sort(shared);

    auto gain = std::int64_t{0};
    for (auto run = blocks.begin(); run != blocks.end();) {
      const auto end = std::find_if(run, blocks.end(), [&](block_id block) { return block != *run; });
      const bool last_references = end - run == static_cast<std::ptrdiff_t>(state.pool.state(*run).count());
      gain += last_references && state.pool.could_be_released(*run) && !std::ranges::binary_search(shared, *run);
      run = end;
    }
    return gain;
  } catch (const std::bad_alloc&) {
    return no_memory;
  }
}

}  // namespace pagedkv::detail
