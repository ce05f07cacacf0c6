#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/parts/chain_lists.hpp>

namespace pagedkv {

/// Evicts the block that was published longest ago; a hit changes nothing.
class fifo {
 public:
  static constexpr std::string_view name = "fifo";
  static constexpr bool concurrent = false;

  explicit fifo(std::int32_t num_blocks) : lists_(num_blocks, 1) {}

  void insert(block_id block, const block_release& release) noexcept {
    if (lists_.tracked(block)) {
      lists_.restore(block, release.parent);
    } else {
      lists_.insert(block, release.parent, queue);
    }
  }

  void remove(block_id block) noexcept { lists_.hold(block); }
  void erase(block_id block) noexcept { lists_.erase(block); }
  void rename(block_id from, block_id to) noexcept { lists_.rename(from, to); }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp) noexcept {
    auto block = lists_.take_due(offer);
    if (block == no_block) {
      block = lists_.take_oldest(queue, offer);
    }
    return block != no_block ? block : lists_.take_any(offer);
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return lists_.bytes(); }

 private:
  static constexpr auto queue = chain_lists::list_index{0};

  chain_lists lists_;
};

static_assert(eviction_policy<fifo>);

}  // namespace pagedkv
