#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstddef>

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

}  // namespace pagedkv
