#pragma once

#include <pagedkv/policy/eviction.hpp>
#include <pagedkv/policy/eviction/block_lists.hpp>

#include <utility>
#include <vector>

namespace pagedkv {

/// Evicts the block that was published longest ago; a hit changes nothing. 13 bytes per block; every call is amortised
/// constant time, however many blocks are in use.
///
/// A block keeps its place while it is in use and loses it only when a search meets it there: then it is oldest of all, and
/// returns as the oldest. A block that is due before blocks which continue it is parked until the last of those is gone.
class fifo {
 public:
  static constexpr std::string_view name = "fifo";
  static constexpr bool concurrent = false;

  explicit fifo(std::int32_t num_blocks)
      : lists_(num_blocks, 2),
        parents_(static_cast<std::size_t>(num_blocks), no_block),
        states_(static_cast<std::size_t>(num_blocks), state::untracked) {}

  void insert(block_id block, const block_release& release) noexcept {
    auto& current = states_[to_index(block)];
    if (current == state::untracked) {
      lists_.push_newest(block, queue);
    } else if (current == state::in_use_detached) {
      lists_.push_oldest(block, queue);
    }
    current = state::queued;
    parents_[to_index(block)] = release.parent;
  }

  void remove(block_id block) noexcept {
    auto& current = states_[to_index(block)];
    if (current == state::parked) {
      lists_.unlink(block);
      current = state::in_use_detached;
    } else {
      current = state::in_use_queued;
    }
  }

  void erase(block_id block) noexcept { static_cast<void>(take(block)); }

  void rename(block_id from, block_id to) noexcept {
    lists_.replace(from, to);
    states_[to_index(to)] = std::exchange(states_[to_index(from)], state::untracked);
    parents_[to_index(to)] = parents_[to_index(from)];
  }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp) noexcept {
    if (const auto block = offer_parked(offer, 1); block != no_block) {
      return block;
    }
    for (auto block = lists_.oldest(queue); block != no_block; block = lists_.oldest(queue)) {
      if (states_[to_index(block)] == state::in_use_queued) {
        move(block, state::in_use_detached);
      } else if (offer(block) == eviction_answer::taken) {
        return take(block);
      } else {
        move(block, state::parked);
      }
    }
    if (const auto block = offer_parked(offer, max_tries); block != no_block) {
      return block;
    }
    const auto block = lists_.oldest(parked);
    return block != no_block && offer(block, evict_anyway) == eviction_answer::taken ? take(block) : no_block;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return lists_.bytes() + parents_.capacity() * sizeof(block_id) + states_.capacity() * sizeof(state);
  }

 private:
  enum class state : std::uint8_t { untracked, queued, parked, in_use_queued, in_use_detached };

  static constexpr auto queue = block_lists::list_index{0};
  static constexpr auto parked = block_lists::list_index{1};
  static constexpr auto max_tries = 32;

  /// Parked blocks are offered again in turn: a child may have gone unnoticed, under the name of a parent since renamed.
  template <class Offer>
  [[nodiscard]] block_id offer_parked(Offer& offer, int tries) noexcept {
    for (; tries > 0 && !lists_.empty(parked); --tries) {
      const auto block = lists_.oldest(parked);
      if (offer(block) == eviction_answer::taken) {
        return take(block);
      }
      move(block, state::parked);
    }
    return no_block;
  }

  void move(block_id block, state to) noexcept {
    lists_.unlink(block);
    states_[to_index(block)] = to;
    if (to == state::parked) {
      lists_.push_newest(block, parked);
    }
  }

  [[nodiscard]] block_id take(block_id block) noexcept {
    move(block, state::untracked);
    const auto parent = parents_[to_index(block)];
    if (parent != no_block && states_[to_index(parent)] == state::parked) {
      lists_.unlink(parent);
      lists_.push_oldest(parent, queue);
      states_[to_index(parent)] = state::queued;
    }
    return block;
  }

  block_lists lists_;
  std::vector<block_id> parents_;
  std::vector<state> states_;
};

static_assert(eviction<fifo>);

}  // namespace pagedkv
