#pragma once

#include <pagedkv/cache/operations/append.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/metrics/counters.hpp>
#include <pagedkv/metrics/statistics.hpp>
#include <pagedkv/policy/locking/parts/unsynchronized.hpp>
#include <pagedkv/pool/plan_moves.hpp>
#include <pagedkv/storage/view.hpp>

#include <algorithm>
#include <cassert>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

// Moves of blocks: for a pool without gaps, and for another size.

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

/// Evicts a block, with what becomes useless; false when there is none to evict. No other thread is at work.
template <class State>
bool evict_alone(State& state) noexcept {
  auto watched = state.chains();
  auto victim = no_block;
  auto num_evicted = static_cast<std::int64_t>(state.pool.evict({&victim, 1}, watched, state.time(), 0));
  num_evicted = num_evicted != 0 ? num_evicted : state.pool.evict_any(watched);
  state.free_useless(0, [&](block_id) { ++num_evicted; });
  count<&cache_statistics::evictions>(state.counts, num_evicted);
  return num_evicted != 0;
}

/// Moves blocks so that free ones have higher ids than all others and, where a change of the size moves nothing, those
/// in use lower ones than cached ones, for which one of these is evicted if no block is free. Where that fails
/// half-way, returns the moves until then.
template <class State>
[[nodiscard]] result<std::vector<block_pair>> compact(State& state, block_copier move, block_renamer rename) noexcept {
  if (state.pool.step_in_flight()) {
    return error{error_code::in_use, "number of steps in flight", state.pool.num_open_steps(), 0};
  }
  auto moves = result<std::vector<block_pair>>{std::vector<block_pair>{}};
  if constexpr (!runs_alone<typename State::locking_type>) {
    if (state.pool.num_free() == 0 && uses_above_cached(state.pool)) {
      evict_alone(state);
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

/// Marks the time in which one thread changes the size.
template <class State>
class [[nodiscard]] size_change {
 public:
  explicit size_change(State& state) noexcept
      : state_(state), first_(!state.resizing.exchange(true, std::memory_order_acquire)) {}
  size_change(const size_change&) = delete;
  size_change& operator=(const size_change&) = delete;
  ~size_change() {
    if (first_) {
      state_.resizing.store(false, std::memory_order_release);
    }
  }

  [[nodiscard]] bool first() const noexcept { return first_; }

 private:
  State& state_;
  bool first_;
};

/// Evicts so many blocks that the rest fits into a pool of this size. A block that this makes useless may wait for a
/// step, and then is not free. No other thread is at work.
template <class State>
void evict_to_fit(State& state, std::int64_t num_blocks) noexcept {
  while (state.pool.size() - state.pool.num_free() > num_blocks && evict_alone(state)) {
  }
}

/// Takes the blocks from `num_blocks` on out of the pool, the cached ones among them too.
template <class State>
[[nodiscard]] result<void> cut_tail(State& state, std::int32_t num_blocks) noexcept {
  const auto num_held = state.pool.count_held_from(block_id{num_blocks});
  auto watched = state.chains();
  auto num_evicted = std::int64_t{0};
  if (num_held != 0 || !state.pool.shrink_to(num_blocks, watched, num_evicted)) {
    return error{error_code::in_use, "number of held blocks beyond the new size", std::max(num_held, std::int64_t{1}),
                 0};
  }
  state.free_useless(0, [&](block_id) { ++num_evicted; });
  count<&cache_statistics::evictions>(state.counts, num_evicted);
  return {};
}

/// Moves the blocks from `num_blocks` on to free ones below, after it has evicted as many as do not fit.
template <class State>
[[nodiscard]] result<std::vector<block_pair>> shrink_alone(State& state, std::int32_t num_blocks, block_copier move,
                                                           block_renamer rename,
                                                           function_ref<result<void>()> wait) noexcept {
  if (const auto staying = state.pool.size() - state.pool.num_available(); staying > num_blocks) {
    return error{error_code::in_use, "number of blocks that the pool has to keep", staying, num_blocks};
  }
  evict_to_fit(state, num_blocks);
  auto moves = plan_compaction(state, static_cast<std::size_t>(num_blocks));
  if (!moves) {
    return moves;
  }
  const auto names = moves->empty() ? result<std::vector<block_id>>{std::vector<block_id>{}} : new_names(state, *moves);
  if (!names) {
    return names.error();
  }
  if (const result<void> moved = moves->empty() ? result<void>{} : move(*moves); !moved) {
    return moved.error();
  }
  if (const auto idle = wait(); !idle) {
    return idle.error();
  }
  if (!moves->empty()) {
    rename(*moves, *names);
  }
  const auto cut = cut_tail(state, num_blocks);
  assert(cut && "alone, and after the moves, every block beyond the new size is free or evictable");
  if (!cut) {
    return cut.error();
  }
  return moves;
}

/// Shrinks where other threads may be at work: moves nothing, and evicts the cached blocks from `num_blocks` on.
template <class State>
[[nodiscard]] result<std::vector<block_pair>> shrink_among_others(State& state, std::int32_t num_blocks,
                                                                  function_ref<result<void>()> wait) noexcept {
  const auto before = state.pool.size();
  if (const auto cut = cut_tail(state, num_blocks); !cut) {
    return cut.error();
  }
  if (const auto idle = wait(); !idle) {
    state.pool.grow_to(before);
    return idle.error();
  }
  return std::vector<block_pair>{};
}

/// Brings the pool and, by `resize_memory(num_blocks)`, its storage to `num_blocks` blocks; returns the moves.
/// `wait()` waits for the device's work on blocks whose memory goes.
template <class State>
[[nodiscard]] result<std::vector<block_pair>> resize(State& state, std::int32_t num_blocks, block_copier move,
                                                     block_renamer rename,
                                                     function_ref<result<void>(std::int32_t)> resize_memory,
                                                     function_ref<result<void>()> wait) noexcept {
  if (num_blocks < 1) {
    return error{error_code::invalid_argument, "number of blocks", num_blocks, 1};
  }
  if (num_blocks > state.config.capacity()) {
    return error{error_code::invalid_argument, "number of blocks, more than cache_config::capacity,", num_blocks,
                 state.config.capacity()};
  }
  const auto change = size_change{state};
  if (!change.first()) {
    return error{error_code::in_use, "number of other changes of the size", 1, 0};
  }
  if (num_blocks >= state.pool.size()) {
    if (const auto grown = resize_memory(num_blocks); !grown) {
      return grown.error();
    }
    state.pool.grow_to(num_blocks);
    return std::vector<block_pair>{};
  }
  auto moves = [&] {
    if constexpr (runs_alone<typename State::locking_type>) {
      return shrink_alone(state, num_blocks, move, rename, wait);
    } else {
      return shrink_among_others(state, num_blocks, wait);
    }
  }();
  if (moves) {
    static_cast<void>(resize_memory(num_blocks));
  }
  return moves;
}

}  // namespace pagedkv::detail
