#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/storage/view.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace pagedkv {

/// Whether the source of every pair lies in `from`, and the destination in `to`. Errors: `invalid_argument`.
[[nodiscard]] inline result<void> check_pairs(const block_storage_view& from, const block_storage_view& to,
                                              std::span<const block_pair> pairs) noexcept {
  for (const auto& [source, destination] : pairs) {
    if (source < 0 || source >= from.num_blocks) {
      return detail::bad_index("source block", source, from.num_blocks);
    }
    if (destination < 0 || destination >= to.num_blocks) {
      return detail::bad_index("destination block", destination, to.num_blocks);
    }
  }
  return {};
}

[[nodiscard]] inline result<void> check_pairs(const block_storage_view& view,
                                              std::span<const block_pair> pairs) noexcept {
  return check_pairs(view, view, pairs);
}

/// Orders moves so that no block is overwritten while a later move still reads it. Every block is the destination of at
/// most one move, so after all unblocked moves, disjoint cycles remain.
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

  /// Moves with different source and destination: an upper bound of the calls that `run` makes.
  [[nodiscard]] std::size_t size() const noexcept { return moves_.size(); }

  /// The first block that is the destination of two moves.
  [[nodiscard]] std::optional<std::int32_t> ambiguous_destination() const noexcept {
    const auto twice = std::adjacent_find(moves_.begin(), moves_.end(), [](const move& a, const move& b) {
      return a.pair.destination == b.pair.destination;
    });
    return twice == moves_.end() ? std::nullopt : std::optional{twice->pair.destination};
  }

  /// Calls `copy(pair)` for each move whose destination no remaining move reads, then `swap(pair)` along each cycle; a
  /// swap leaves in both blocks the contents that the cycle needs so far. Call once.
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
  std::vector<move*> ready_;  // reserved like moves_, so that run() does not allocate
};

}  // namespace pagedkv
