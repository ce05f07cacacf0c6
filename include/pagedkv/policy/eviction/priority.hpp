#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/parts/chain_lists.hpp>
#include <pagedkv/policy/eviction/parts/deadline_heap.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace pagedkv {

/// Evicts the lowest priority first, the least recently released first within one. A priority that was given for a time
/// falls back to 0 when the time is over, and counts as released then. Blocks of sessions that have ended go before all
/// others, except as far as others continue them.
///
/// Releasing a block with a retention time, and its expiry, take logarithmic time.
class priority {
 public:
  static constexpr std::string_view name = "priority";
  static constexpr bool concurrent = false;
  static constexpr bool twins_first = false;
  static constexpr bool uses_priority = true;

  static constexpr auto max_priority = 100;

  explicit priority(std::int32_t num_blocks) : lists_(num_blocks, num_lists), deadlines_(num_blocks) {}

  void insert(block_id block, const block_release& release) noexcept {
    const auto list = release.ended ? ended : list_for(release.priority);
    put(block, release.parent, list);
    if (list > list_for(0) && release.retain_until != timestamp{}) {
      deadlines_.set(block, release.retain_until);
    }
  }

  void remove(block_id block) noexcept {
    deadlines_.erase(block);
    lists_.hold(block);
  }

  void erase(block_id block) noexcept {
    deadlines_.erase(block);
    lists_.erase(block);
  }

  void rename(block_id from, block_id to) noexcept {
    deadlines_.rename(from, to);
    lists_.rename(from, to);
  }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp now) noexcept {
    expire(now);
    auto block = lists_.take_due(offer);
    for (auto word = std::size_t{0}; word < occupied_.size() && block == no_block; ++word) {
      while (occupied_[word] != 0 && block == no_block) {
        const auto bit = std::countr_zero(occupied_[word]);
        const auto list = word * 64 + static_cast<std::size_t>(bit);
        block = lists_.take_oldest(static_cast<chain_lists::list_index>(list), offer);
        if (block == no_block) {
          occupied_[word] &= ~(std::uint64_t{1} << bit);
        }
      }
    }
    if (block == no_block) {
      block = lists_.take_any(offer);
    }
    if (block != no_block) {
      deadlines_.erase(block);
    }
    return block;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return lists_.bytes() + deadlines_.bytes(); }

 private:
  static constexpr auto num_lists = chain_lists::list_index{max_priority + 2};
  static constexpr auto ended = chain_lists::list_index{0};

  [[nodiscard]] static chain_lists::list_index list_for(int level) noexcept {
    return static_cast<chain_lists::list_index>(1 + std::min(level, max_priority));
  }

  void put(block_id block, block_id parent, chain_lists::list_index list) noexcept {
    lists_.insert(block, parent, list);
    occupied_[list / 64] |= std::uint64_t{1} << list % 64;
  }

  void expire(timestamp now) noexcept {
    while (!deadlines_.empty() && deadlines_.earliest_deadline() <= now) {
      const auto block = deadlines_.earliest();
      deadlines_.erase(block);
      lists_.move_newest(block, list_for(0));
      occupied_[0] |= std::uint64_t{1} << list_for(0);
    }
  }

  chain_lists lists_;
  deadline_heap deadlines_;
  std::array<std::uint64_t, 2> occupied_{};  // lists that may have blocks
};

static_assert(eviction_policy<priority>);

}  // namespace pagedkv
