#pragma once

#include <pagedkv/cache/groups/group_state.hpp>
#include <pagedkv/core/ids.hpp>

#include <algorithm>
#include <span>

// New ids of moved blocks, wherever tables and nodes name them.

namespace pagedkv::detail {

/// Renames moved blocks wherever they are named: linear in the pool and in all tables.
template <layered State>
void apply_moves(State& state, std::span<const block_pair> moves, std::span<const block_id> names) noexcept {
  const auto new_id = [&](block_id block) { return block == no_block ? no_block : names[to_index(block)]; };
  state.nodes.rename_blocks(moves, new_id);
  state.pool.apply_moves(moves, new_id);
  const auto rename = [&](group_tables& tables) {
    for (auto& table : tables) {
      table.rename(new_id);
    }
  };
  state.sequences.for_each([&](auto& cell) {
    rename(cell.record().tables);
    std::ranges::transform(cell.record().newest, cell.record().newest.begin(), new_id);
  });
  state.pins.for_each([&](auto& cell) { rename(cell.record().tables); });
}

}  // namespace pagedkv::detail
