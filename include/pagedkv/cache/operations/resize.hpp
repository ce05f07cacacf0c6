#pragma once

#include <pagedkv/cache/operations/compact.hpp>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv::detail {

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

/// Evicts so many blocks that the rest fits into a pool of this size. No other thread is at work.
template <class State>
void evict_to_fit(State& state, std::int64_t num_blocks) noexcept {
  const auto counts = state.pool.counts();
  auto num_left = counts.in_use + counts.retiring + counts.evictable - num_blocks;
  auto victims = std::array<block_id, 64>{};
  while (num_left > 0) {
    const auto wanted = std::span{victims}.first(std::min(static_cast<std::size_t>(num_left), victims.size()));
    const auto num_freed = evict_alone(state, wanted);
    if (num_freed == 0) {
      break;
    }
    num_left -= num_freed;
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
  if (num_blocks < 1 || num_blocks > state.config.capacity()) {
    return error{error_code::invalid_argument, "number of blocks", num_blocks,
                 num_blocks < 1 ? 1 : state.config.capacity()};
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
