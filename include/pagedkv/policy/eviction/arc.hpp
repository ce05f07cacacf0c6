#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/parts/chain_lists.hpp>
#include <pagedkv/policy/eviction/parts/ghost_list.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace pagedkv {

/// ARC (Megiddo and Modha, FAST 2003): one LRU list of blocks used once and one of blocks used again, whose shares
/// follow the ghosts that come back. A pool evicts before it knows which contents come into the room. Therefore the
/// shares move when a returning block is first released, not when it is missed.
class arc {
 public:
  static constexpr std::string_view name = "arc";
  static constexpr bool concurrent = false;

  explicit arc(std::int32_t num_blocks)
      : num_blocks_(num_blocks),
        lists_(num_blocks, 2),
        ghosts_(num_blocks, 2),
        hashes_(static_cast<std::size_t>(num_blocks), 0) {}

  void insert(block_id block, const block_release& release) noexcept {
    const auto tracked = lists_.tracked(block);
    lists_.insert(block, release.parent, tracked || returns(release.hash) ? again : once);
    if (!tracked || lists_.note(block) != hashed) {
      hashes_[to_index(block)] = release.hash;
      lists_.set_note(block, release.hash != 0 ? hashed : 0);
    }
  }

  void remove(block_id block) noexcept { lists_.hold(block); }
  void erase(block_id block) noexcept { lists_.erase(block); }

  void rename(block_id from, block_id to) noexcept {
    lists_.rename(from, to);
    hashes_[to_index(to)] = hashes_[to_index(from)];
  }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp) noexcept {
    auto list = lists_.size(once) > target_ ? once : again;
    auto block = lists_.take_due(offer);
    if (block == no_block) {
      block = lists_.take_oldest(list, offer);
    }
    if (block == no_block) {
      block = lists_.take_oldest(list == once ? again : once, offer);
    }
    if (block == no_block) {
      block = lists_.take_any(offer);
    }
    if (block != no_block) {
      remember(hashes_[to_index(block)], lists_.list_of(block));
    }
    return block;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return lists_.bytes() + ghosts_.bytes() + hashes_.capacity() * sizeof(std::uint64_t);
  }

 private:
  static constexpr auto once = chain_lists::list_index{0};
  static constexpr auto again = chain_lists::list_index{1};

  // The note of a tracked block whose hash is known: a hit does not write it again. A victim that an allocation gave
  // back comes without its hash.
  static constexpr auto hashed = std::uint16_t{1};

  [[nodiscard]] bool returns(std::uint64_t hash) noexcept {
    const auto num_once = ghosts_.size(once);
    const auto num_again = ghosts_.size(again);
    const auto ghost = ghosts_.take(hash);
    if (!ghost) {
      return false;
    }
    if (ghost->list == once) {
      target_ = std::min(num_blocks_, target_ + std::max(1, num_again / num_once));
    } else {
      target_ = std::max(0, target_ - std::max(1, num_once / num_again));
    }
    return true;
  }

  void remember(std::uint64_t hash, chain_lists::list_index list) noexcept {
    if (ghosts_.size(once) != 0 && ghosts_.size(once) + lists_.size(once) >= num_blocks_) {
      ghosts_.pop_oldest(once);
    }
    if (ghosts_.full()) {
      ghosts_.pop_oldest(ghosts_.size(again) != 0 ? again : once);
    }
    ghosts_.push({hash, list});
  }

  std::int32_t num_blocks_;
  std::int32_t target_ = 0;  // size of `once` that is aimed at
  chain_lists lists_;
  ghost_list ghosts_;
  std::vector<std::uint64_t> hashes_;
};

static_assert(eviction_policy<arc>);

}  // namespace pagedkv
