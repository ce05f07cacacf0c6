#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/parts/chain_lists.hpp>

#include <cstdint>
#include <utility>
#include <vector>

namespace pagedkv {

/// SIEVE (Zhang et al., NSDI 2024): a queue by time of publication and a hand that goes from its old end to its new
/// one, spares blocks that were hit since it last came by, and evicts the others. Blocks keep their place when they are
/// hit.
class sieve {
 public:
  static constexpr std::string_view name = "sieve";
  static constexpr bool concurrent = false;

  explicit sieve(std::int32_t num_blocks) : lists_(num_blocks, 2), visited_(static_cast<std::size_t>(num_blocks), 0) {}

  void insert(block_id block, const block_release& release) noexcept {
    if (lists_.tracked(block)) {
      lists_.restore(block, release.parent);
    } else {
      lists_.insert(block, release.parent, ahead_);
    }
  }

  void remove(block_id block) noexcept {
    visited_[to_index(block)] = 1;
    lists_.hold(block);
  }

  void erase(block_id block) noexcept {
    visited_[to_index(block)] = 0;
    lists_.erase(block);
  }

  void rename(block_id from, block_id to) noexcept {
    lists_.rename(from, to);
    visited_[to_index(to)] = std::exchange(visited_[to_index(from)], std::uint8_t{0});
  }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp) noexcept {
    if (const auto block = lists_.take_due(offer); block != no_block) {
      return block;
    }
    for (auto laps = 0; laps < 2; ++laps, std::swap(ahead_, behind_)) {
      for (auto block = lists_.oldest_evictable(ahead_); block != no_block; block = lists_.oldest_evictable(ahead_)) {
        if (std::exchange(visited_[to_index(block)], std::uint8_t{0}) != 0) {
          lists_.move_newest(block, behind_);
        } else if (lists_.take(block, offer)) {
          return block;
        }
      }
    }
    for (const auto list : {ahead_, behind_}) {
      if (const auto block = lists_.take_oldest(list, offer); block != no_block) {
        return block;
      }
    }
    return lists_.take_any(offer);
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return lists_.bytes() + visited_.capacity(); }

 private:
  chain_lists lists_;
  std::vector<std::uint8_t> visited_;
  chain_lists::list_index ahead_ = 0;   // from the hand to the newest
  chain_lists::list_index behind_ = 1;  // blocks that the hand has passed: its next lap
};

static_assert(eviction_policy<sieve>);

}  // namespace pagedkv
