#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstddef>
#include <vector>

namespace pagedkv {

/// Calls `move(from, to)` for moves of blocks from `first` on after which, as far as there are free blocks, none of
/// those is below a block that is not free. Requires that no other thread uses the pool.
template <class Pool, class Move>
void plan_moves(const Pool& pool, std::size_t first, Move&& move) {
  const auto is_free = [&](std::size_t index) { return pool.state(to_block(index)).word() == 0; };
  auto hole = std::size_t{0};
  auto source = static_cast<std::size_t>(pool.size());
  for (;;) {
    while (hole < source && !is_free(hole)) {
      ++hole;
    }
    do {
      --source;
    } while (source > hole && is_free(source));
    if (source <= hole || source < first) {
      return;
    }
    move(to_block(source), to_block(hole));
    ++hole;
  }
}

/// Whether a block in use is above a cached one. Requires that no other thread uses the pool.
template <class Pool>
[[nodiscard]] bool uses_above_cached(const Pool& pool) noexcept {
  auto has_cached = false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(pool.size()); ++i) {
    const auto seen = pool.state(to_block(i));
    if (has_cached && seen.word() != 0 && !seen.listed()) {
      return true;
    }
    has_cached |= seen.listed();
  }
  return false;
}

/// Calls `move(from, to)` for moves after which no block in use is above a cached one, if at least one block is free. A
/// destination is free once the moves before it are done. Requires that no other thread uses the pool. May throw
/// `std::bad_alloc`.
template <class Pool, class Move>
void plan_gathering(const Pool& pool, Move&& move) {
  const auto size = static_cast<std::size_t>(pool.size());
  auto free = std::vector<std::size_t>{};
  auto cached = std::vector<std::size_t>{};
  auto held = std::vector<std::size_t>{};
  for (std::size_t i = 0; i < size; ++i) {
    const auto seen = pool.state(to_block(i));
    (seen.word() == 0 ? free : seen.listed() ? cached : held).push_back(i);
  }
  const auto end = held.size();
  auto next_free = std::size_t{0};
  const auto take_free = [&] { return free[next_free++]; };
  const auto move_last_held_to = [&](std::size_t gap) {
    move(to_block(held.back()), to_block(gap));
    free.push_back(held.back());
    held.pop_back();
  };
  while (next_free < free.size() && free[next_free] < end) {
    move_last_held_to(take_free());
  }
  for (const auto gap : cached) {
    if (gap >= end || next_free == free.size()) {
      return;
    }
    move(to_block(gap), to_block(take_free()));
    move_last_held_to(gap);
  }
}

}  // namespace pagedkv
