#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/parts/chain_lists.hpp>

namespace pagedkv {

/// Segmented LRU (Karedla, Love and Wherry, 1994): blocks that have been hit live in a protected segment of four
/// fifths of the pool; its overflow returns to the probationary one, from which victims are taken. Blocks that are
/// used once pass through without disturbing the others.
class slru {
 public:
  static constexpr std::string_view name = "slru";
  static constexpr bool concurrent = false;

  explicit slru(std::int32_t num_blocks) : lists_(num_blocks, 2), protected_limit_(num_blocks / 5 * 4) {}

  void insert(block_id block, const block_release& release) noexcept {
    if (!lists_.tracked(block)) {
      lists_.insert(block, release.parent, probation);
      return;
    }
    lists_.insert(block, release.parent, protected_);
    while (lists_.size(protected_) > protected_limit_ && lists_.oldest(protected_) != no_block) {
      lists_.move_newest(lists_.oldest(protected_), probation);
    }
  }

  void remove(block_id block) noexcept { lists_.hold(block); }
  void erase(block_id block) noexcept { lists_.erase(block); }
  void rename(block_id from, block_id to) noexcept { lists_.rename(from, to); }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp) noexcept {
    auto block = lists_.take_due(offer);
    for (const auto list : {probation, protected_}) {
      block = block == no_block ? lists_.take_oldest(list, offer) : block;
    }
    return block != no_block ? block : lists_.take_any(offer);
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return lists_.bytes(); }

 private:
  static constexpr auto probation = chain_lists::list_index{0};
  static constexpr auto protected_ = chain_lists::list_index{1};

  chain_lists lists_;
  std::int32_t protected_limit_;
};

static_assert(eviction_policy<slru>);

}  // namespace pagedkv
