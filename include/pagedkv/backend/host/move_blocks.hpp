#pragma once

#include <pagedkv/backend/host/copy_blocks.hpp>

#include <algorithm>
#include <cstddef>
#include <new>
#include <optional>
#include <vector>

namespace pagedkv::host {

/// Orders moves so that no block is overwritten while a move still has to read it. Every block is the destination of at
/// most one move, so that what remains when no move is free to run is a set of disjoint cycles.
class move_order {
 public:
  /// Throws `std::bad_alloc`. O(n log n).
  explicit move_order(std::span<const block_pair> pairs) {
    moves_.reserve(pairs.size());
    for (const auto pair : pairs) {
      if (pair.source != pair.destination) {
        moves_.push_back({pair, 0, false});
      }
    }
    std::sort(moves_.begin(), moves_.end(),
              [](const move& a, const move& b) { return a.pair.destination < b.pair.destination; });
    ready_.reserve(moves_.size());
    for (const auto& m : moves_) {
      if (auto* const overwriting = into(m.pair.source)) {
        ++overwriting->readers_left;
      }
    }
  }

  /// The first block that is the destination of two moves.
  [[nodiscard]] std::optional<std::int32_t> ambiguous_destination() const noexcept {
    const auto twice = std::adjacent_find(moves_.begin(), moves_.end(), [](const move& a, const move& b) {
      return a.pair.destination == b.pair.destination;
    });
    return twice == moves_.end() ? std::nullopt : std::optional{twice->pair.destination};
  }

  /// Calls `copy(pair)` for moves whose destination is no longer read, then `swap(pair)` along each cycle, which leaves in
  /// both of its blocks what the cycle wants there so far. Call once.
  template <class Copy, class Swap>
  void run(Copy copy, Swap swap) noexcept {
    for (auto& m : moves_) {
      if (m.readers_left == 0) {
        ready_.push_back(&m);
      }
    }
    while (!ready_.empty()) {
      auto* const next = ready_.back();
      ready_.pop_back();
      copy(next->pair);
      next->done = true;
      auto* const overwriting = into(next->pair.source);
      if (overwriting != nullptr && --overwriting->readers_left == 0) {
        ready_.push_back(overwriting);
      }
    }
    for (auto& first : moves_) {
      for (auto* m = &first; !m->done; m = into(m->pair.source)) {
        m->done = true;
        if (m->pair.source != first.pair.destination) {
          swap(m->pair);
        }
      }
    }
  }

 private:
  struct move {
    block_pair pair;
    std::int32_t readers_left;  // moves that still read this one's destination
    bool done;
  };

  [[nodiscard]] move* into(std::int32_t block) noexcept {
    const auto found = std::lower_bound(moves_.begin(), moves_.end(), block,
                                        [](const move& m, std::int32_t wanted) { return m.pair.destination < wanted; });
    return found != moves_.end() && found->pair.destination == block ? &*found : nullptr;
  }

  std::vector<move> moves_;   // by destination
  std::vector<move*> ready_;  // as much capacity as moves_ from the start, so that run() does not allocate
};

/// Exchanges two blocks in every layer.
inline void swap_block(const block_storage_view& view, block_pair pair) noexcept {
  for (auto layer = std::int32_t{0}; layer < view.num_layers; ++layer) {
    auto* const source = view.block(layer, pair.source);
    std::swap_ranges(source, source + view.layer_bytes(), view.block(layer, pair.destination));
  }
}

/// Copies blocks in every layer as if all sources were read first, through chains and cycles, in place. Errors, before
/// anything is written: `invalid_argument` for a block outside the storage or the destination of two moves;
/// `out_of_memory` for the working memory, which is proportional to the moves.
[[nodiscard]] inline result<void> move_blocks(const block_storage_view& view,
                                              std::span<const block_pair> pairs) noexcept {
  if (const auto checked = check_pairs(view, pairs); !checked) {
    return checked;
  }
  try {
    auto order = move_order{pairs};
    if (const auto twice = order.ambiguous_destination()) {
      return error{error_code::invalid_argument, "destination block of two moves", *twice};
    }
    order.run([&](block_pair pair) { copy_block(view, pair); }, [&](block_pair pair) { swap_block(view, pair); });
    return {};
  } catch (const std::bad_alloc&) {
    return error{error_code::out_of_memory, "moves", static_cast<std::int64_t>(pairs.size())};
  }
}

}  // namespace pagedkv::host
