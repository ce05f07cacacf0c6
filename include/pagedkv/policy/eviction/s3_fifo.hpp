#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/parts/chain_lists.hpp>
#include <pagedkv/policy/eviction/parts/ghost_list.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace pagedkv {

/// S3-FIFO (Yang et al., SOSP 2023): new blocks pass through a small queue of a tenth of the pool; those hit there
/// more than once, and those that return soon after leaving it, go on to the main queue, which gives a further round
/// for each hit up to three.
class s3_fifo {
 public:
  static constexpr std::string_view name = "s3_fifo";
  static constexpr bool concurrent = false;

  explicit s3_fifo(std::int32_t num_blocks)
      : small_limit_(std::max(1, num_blocks / 10)),
        lists_(num_blocks, 2),
        ghosts_(num_blocks - num_blocks / 10, 1),
        hits_(static_cast<std::size_t>(num_blocks), 0),
        hashes_(static_cast<std::size_t>(num_blocks), 0) {}

  void insert(block_id block, const block_release& release) noexcept {
    if (lists_.tracked(block)) {
      lists_.restore(block, release.parent);
    } else {
      lists_.insert(block, release.parent, ghosts_.take(release.hash) ? main : small);
      hashes_[to_index(block)] = release.hash;
    }
  }

  void remove(block_id block) noexcept {
    auto& hits = hits_[to_index(block)];
    hits = static_cast<std::uint8_t>(std::min(hits + 1, max_hits));
    lists_.hold(block);
  }

  void erase(block_id block) noexcept {
    hits_[to_index(block)] = 0;
    lists_.erase(block);
  }

  void rename(block_id from, block_id to) noexcept {
    lists_.rename(from, to);
    hits_[to_index(to)] = std::exchange(hits_[to_index(from)], std::uint8_t{0});
    hashes_[to_index(to)] = hashes_[to_index(from)];
  }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp) noexcept {
    auto block = lists_.take_due(offer);
    if (block == no_block && lists_.size(small) >= small_limit_) {
      block = take_small(offer);
    }
    if (block == no_block) {
      block = take_main(offer);
    }
    if (block == no_block) {
      block = take_small(offer);
    }
    if (block == no_block) {
      block = take_main(offer);
    }
    if (block == no_block) {
      block = lists_.take_any(offer);
    }
    if (block != no_block) {
      leave(block);
    }
    return block;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return lists_.bytes() + ghosts_.bytes() + hits_.capacity() + hashes_.capacity() * sizeof(std::uint64_t);
  }

 private:
  static constexpr auto small = chain_lists::list_index{0};
  static constexpr auto main = chain_lists::list_index{1};
  static constexpr auto max_hits = 3;

  template <class Offer>
  [[nodiscard]] block_id take_small(Offer& offer) noexcept {
    for (auto block = lists_.oldest_evictable(small); block != no_block; block = lists_.oldest_evictable(small)) {
      if (hits_[to_index(block)] > 1) {
        hits_[to_index(block)] = 0;
        lists_.move_newest(block, main);
      } else if (lists_.take(block, offer)) {
        return block;
      }
    }
    return no_block;
  }

  template <class Offer>
  [[nodiscard]] block_id take_main(Offer& offer) noexcept {
    for (auto block = lists_.oldest_evictable(main); block != no_block; block = lists_.oldest_evictable(main)) {
      if (hits_[to_index(block)] > 0) {
        --hits_[to_index(block)];
        lists_.move_newest(block, main);
      } else if (lists_.take(block, offer)) {
        return block;
      }
    }
    return no_block;
  }

  void leave(block_id block) noexcept {
    hits_[to_index(block)] = 0;
    if (lists_.list_of(block) == small) {
      if (ghosts_.full()) {
        ghosts_.pop_oldest(0);
      }
      ghosts_.push({hashes_[to_index(block)], 0});
    }
  }

  std::int32_t small_limit_;
  chain_lists lists_;
  ghost_list ghosts_;
  std::vector<std::uint8_t> hits_;
  std::vector<std::uint64_t> hashes_;
};

static_assert(eviction_policy<s3_fifo>);

}  // namespace pagedkv
