#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/parts/chain_lists.hpp>

#include <array>

namespace pagedkv {

/// Evicts the block that was released longest ago. Chains are released deepest block first, so that their tails go
/// before their heads. 8 bytes per block; every call is constant time.
class lru {
 public:
  static constexpr std::string_view name = "lru";
  static constexpr bool concurrent = false;
  static constexpr bool orders_by_age = true;

  explicit lru(std::int32_t num_blocks) : order_(num_blocks, 1) {}

  void insert(block_id block, const block_release&) noexcept { order_.push_newest(block); }
  void remove(block_id block) noexcept { order_.unlink(block); }
  void erase(block_id block) noexcept { order_.unlink(block); }
  void rename(block_id from, block_id to) noexcept { order_.replace(from, to); }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp) noexcept {
    auto block = order_.oldest();
    for (auto tries = 0; block != no_block && tries < max_tries; ++tries, block = order_.newer(block)) {
      if (offer(block) == eviction_answer::taken) {
        return take(block);
      }
    }
    block = order_.oldest();
    return block != no_block && offer(block, evict_anyway) == eviction_answer::taken ? take(block) : no_block;
  }

  /// The two least recently released blocks, or `no_block`. Constant time.
  [[nodiscard]] std::array<block_id, 2> next_victims() const noexcept {
    const auto next = order_.oldest();
    return {next, next == no_block ? no_block : order_.newer(next)};
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return order_.bytes(); }

 private:
  // The oldest block is a leaf, unless a sequence dropped the head of its chain and went on: that is worth a short
  // look.
  static constexpr auto max_tries = 32;

  [[nodiscard]] block_id take(block_id block) noexcept {
    order_.unlink(block);
    return block;
  }

  block_lists order_;
};

static_assert(eviction_policy<lru> && foresees_victims<lru>);

}  // namespace pagedkv
