#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/parts/chain_lists.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>

namespace pagedkv {

/// Least frequently used, with dynamic ageing (Arlitt et al., 2000): a block ranks by its uses plus the rank of the
/// last victim at the time of its last release, so that old fame fades as the cache turns over. Least recently
/// released first within a rank.
class lfu {
 public:
  static constexpr std::string_view name = "lfu";
  static constexpr bool concurrent = false;

  explicit lfu(std::int32_t num_blocks) : lists_(num_blocks, num_ranks) {}

  void insert(block_id block, const block_release& release) noexcept {
    const auto hits = lists_.tracked(block) ? std::min(lists_.note(block) + 1U, max_hits) : 0U;
    lists_.set_note(block, static_cast<std::uint16_t>(hits));
    const auto list = static_cast<chain_lists::list_index>((age_ + 1U + hits) % num_ranks);
    lists_.insert(block, release.parent, list);
    occupied_ |= std::uint64_t{1} << list;
  }

  void remove(block_id block) noexcept { lists_.hold(block); }
  void erase(block_id block) noexcept { lists_.erase(block); }
  void rename(block_id from, block_id to) noexcept { lists_.rename(from, to); }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp) noexcept {
    auto block = lists_.take_due(offer);
    while (block == no_block && occupied_ != 0) {
      if ((occupied_ >> age_ & 1) == 0) {  // seldom: a branch, for which no list waits
        const auto steps = std::countr_zero(std::rotr(occupied_, static_cast<int>(age_)));
        age_ = (age_ + static_cast<std::uint32_t>(steps)) % num_ranks;
      }
      block = lists_.take_oldest(static_cast<chain_lists::list_index>(age_), offer);
      if (block == no_block) {
        occupied_ &= ~(std::uint64_t{1} << age_);
      }
    }
    return block != no_block ? block : lists_.take_any(offer);
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return lists_.bytes(); }

 private:
  // Ranks count upwards without end, but those in use span less than this: the lists go round.
  static constexpr auto num_ranks = 64U;
  static constexpr auto max_hits = num_ranks - 2;

  chain_lists lists_;  // the note of a block: how often it was hit
  std::uint64_t occupied_ = 0;  // lists that may have blocks
  std::uint32_t age_ = 0;       // list of the lowest rank
};

static_assert(eviction_policy<lfu>);

}  // namespace pagedkv
