#pragma once

#include <pagedkv/cache/operations/copy_on_write.hpp>
#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/detail/with_memory.hpp>
#include <pagedkv/pool/plan_moves.hpp>
#include <pagedkv/storage/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv::detail {

/// Where compaction would move blocks from `first` on. No sources are destinations.
template <class State>
[[nodiscard]] result<std::vector<block_pair>> plan_compaction(const State& state, std::size_t first = 0) noexcept {
  const auto plan = [&]() -> result<std::vector<block_pair>> {
    auto moves = std::vector<block_pair>{};
    plan_moves(state.pool, first, [&](block_id from, block_id to) {
      moves.push_back({static_cast<std::int32_t>(from), static_cast<std::int32_t>(to)});
    });
    return moves;
  };
  return with_memory(plan, error{error_code::out_of_memory, "number of blocks to compact", state.pool.size()});
}

/// The id of every block after the moves.
template <class State>
[[nodiscard]] result<std::vector<block_id>> new_names(const State& state, std::span<const block_pair> moves) noexcept {
  const auto rename = [&]() -> result<std::vector<block_id>> {
    auto names = std::vector<block_id>(static_cast<std::size_t>(state.config.capacity()));
    for (std::size_t i = 0; i < names.size(); ++i) {
      names[i] = to_block(i);
    }
    for (const auto& [from, to] : moves) {
      names[to_index(block_id{from})] = block_id{to};
    }
    return names;
  };
  return with_memory(rename, error{error_code::out_of_memory, "number of blocks to compact", state.pool.size()});
}

/// Renames moved blocks wherever they are named: linear in the pool and in all block tables.
template <class State>
void apply_moves(State& state, std::span<const block_pair> moves, std::span<const block_id> names) noexcept {
  for (const auto& [from, to] : moves) {
    state.index.rename(block_id{from}, block_id{to}, state.pool.state(block_id{from}).published());
  }
  const auto new_id = [&](block_id block) { return block == no_block ? no_block : names[to_index(block)]; };
  state.pool.apply_moves(moves, new_id);
  state.index.rename_parents(new_id);
  const auto rename_table = [&](block_table& blocks) {
    for (auto i = blocks.num_dropped(); i < blocks.size(); ++i) {
      if (new_id(blocks[i]) != blocks[i]) {
        blocks.replace(i, new_id(blocks[i]));
      }
    }
  };
  state.sequences.for_each([&](auto& cell) {
    auto& s = cell.record;
    rename_table(s.blocks);
    s.tail.node = new_id(s.tail.node);
    s.window_start.node = new_id(s.window_start.node);
    find_room(state, s);
  });
  state.pins.for_each([&](auto& cell) { rename_table(cell.record.blocks); });
}

/// Moves blocks so that all free ones have higher ids than all others: K/V through `move(moves)`, names through
/// `rename(moves, names)`.
template <class State, class Move, class Rename>
[[nodiscard]] result<std::vector<block_pair>> compact(State& state, Move move, Rename rename) noexcept {
  if (state.pool.step_in_flight()) {
    return error{error_code::in_use, "number of steps in flight", state.pool.num_open_steps()};
  }
  auto moves = plan_compaction(state);
  if (!moves || moves->empty()) {
    return moves;
  }
  const auto names = new_names(state, *moves);
  if (!names) {
    return names.error();
  }
  if (const result<void> moved = move(*moves); !moved) {
    return moved.error();
  }
  rename(*moves, *names);
  return moves;
}

template <class State, class Move>
[[nodiscard]] result<std::vector<block_pair>> compact(State& state, Move move) noexcept {
  return compact(state, move, [&](std::span<const block_pair> moves, std::span<const block_id> names) {
    apply_moves(state, moves, names);
  });
}

}  // namespace pagedkv::detail
