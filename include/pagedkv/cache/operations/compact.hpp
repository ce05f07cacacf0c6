#pragma once

#include <pagedkv/cache/operations/copy_on_write.hpp>
#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/detail/with_memory.hpp>
#include <pagedkv/metrics/counters.hpp>
#include <pagedkv/metrics/statistics.hpp>
#include <pagedkv/policy/locking/parts/unsynchronized.hpp>
#include <pagedkv/pool/plan_moves.hpp>
#include <pagedkv/storage/view.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv::detail {

/// Whether an operation can keep all other threads out of the cache.
template <locking Locking>
inline constexpr bool runs_alone =
    !Locking::family::concurrent || !std::same_as<typename Locking::cache_mutex, no_mutex>;

/// The moves that `plan(move)` names.
template <class State, class Plan>
[[nodiscard]] result<std::vector<block_pair>> planned(const State& state, Plan&& plan) noexcept {
  const auto list = [&]() -> result<std::vector<block_pair>> {
    auto moves = std::vector<block_pair>{};
    plan([&](block_id from, block_id to) {
      moves.push_back({static_cast<std::int32_t>(from), static_cast<std::int32_t>(to)});
    });
    return moves;
  };
  return with_memory(list, error{error_code::out_of_memory, "number of blocks to compact", state.pool.size()});
}

/// Where compaction would move blocks from `first` on. No sources are destinations.
template <class State>
[[nodiscard]] result<std::vector<block_pair>> plan_compaction(const State& state, std::size_t first = 0) noexcept {
  return planned(state, [&](auto&& move) { plan_moves(state.pool, first, move); });
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
  state.index.rename_links(new_id);
  const auto rename_table = [&](block_table& blocks) {
    for (auto i = blocks.num_dropped(); i < blocks.size(); ++i) {
      if (new_id(blocks[i]) != blocks[i]) {
        blocks.replace(i, new_id(blocks[i]));
      }
    }
  };
  state.sequences.for_each([&](auto& cell) {
    auto& s = cell.record();
    rename_table(s.blocks);
    s.tail.node = new_id(s.tail.node);
    s.window_start.node = new_id(s.window_start.node);
    find_room(state, s);
  });
  state.pins.for_each([&](auto& cell) { rename_table(cell.record().blocks); });
}

/// Carries out moves: K/V through `move(moves)`, names through `rename(moves, names)`. Returns the names.
template <class State>
[[nodiscard]] result<std::vector<block_id>> carry_out(State& state, std::span<const block_pair> moves,
                                                      block_copier move, block_renamer rename) noexcept {
  if (moves.empty()) {
    return std::vector<block_id>{};
  }
  auto names = new_names(state, moves);
  if (!names) {
    return names;
  }
  if (const auto moved = move(moves); !moved) {
    return moved.error();
  }
  rename(moves, *names);
  return names;
}

/// Adds later moves, so that each block is in the list once, with its last id. `moves` has room for them.
inline void add_moves(std::vector<block_pair>& moves, std::span<const block_pair> later,
                      std::vector<block_id>& later_names) noexcept {
  if (later.empty()) {
    return;
  }
  for (auto& [from, to] : moves) {
    auto& last = later_names[static_cast<std::size_t>(to)];
    to = static_cast<std::int32_t>(std::exchange(last, block_id{to}));
  }
  for (const auto& [from, to] : later) {
    if (later_names[static_cast<std::size_t>(from)] != block_id{from}) {
      moves.push_back({from, to});
    }
  }
  std::erase_if(moves, [](const block_pair& pair) { return pair.source == pair.destination; });
}

/// Evicts blocks, as many as there are victims to name, with what becomes useless; returns how many that frees. No other
/// thread is at work.
template <class State>
std::int64_t evict_alone(State& state, std::span<block_id> victims) noexcept {
  auto watched = state.chains();
  auto num_freed = static_cast<std::int64_t>(state.pool.evict(victims, watched, state.time(), 0));
  num_freed = num_freed != 0 ? num_freed : state.pool.evict_any(watched);
  state.free_useless(0, [&](block_id) { ++num_freed; });
  count<&cache_statistics::evictions>(state.counts, num_freed);
  return num_freed;
}

/// Moves blocks so that free ones have higher ids than all others and, where a change of the size moves nothing, those
/// in use lower ones than cached ones, for which one of these is evicted if no block is free. Where that fails half-way,
/// returns the moves until then.
template <class State>
[[nodiscard]] result<std::vector<block_pair>> compact(State& state, block_copier move, block_renamer rename) noexcept {
  if (state.pool.step_in_flight()) {
    return error{error_code::in_use, "number of steps in flight", state.pool.num_open_steps(), 0};
  }
  auto moves = result<std::vector<block_pair>>{std::vector<block_pair>{}};
  if constexpr (!runs_alone<typename State::locking_type>) {
    if (state.pool.num_free() == 0 && uses_above_cached(state.pool)) {
      auto victim = no_block;
      evict_alone(state, {&victim, 1});
    }
    moves = planned(state, [&](auto&& add) { plan_gathering(state.pool, add); });
    if (!moves) {
      return moves;
    }
    if (const auto gathered = carry_out(state, *moves, move, rename); !gathered) {
      return gathered.error();
    }
  }
  const auto finish = [&]() -> result<void> {
    const auto rest = plan_compaction(state);
    if (!rest) {
      return rest.error();
    }
    moves->reserve(moves->size() + rest->size());
    auto names = carry_out(state, *rest, move, rename);
    if (!names) {
      return names.error();
    }
    add_moves(*moves, *rest, *names);
    return {};
  };
  const auto finished =
      with_memory(finish, error{error_code::out_of_memory, "number of blocks to compact", state.pool.size()});
  if (!finished && moves->empty()) {
    return finished.error();
  }
  return moves;
}

}  // namespace pagedkv::detail
