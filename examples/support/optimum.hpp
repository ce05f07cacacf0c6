#pragma once

#include "prefix_trace.hpp"
#include "simulate.hpp"

#include <pagedkv/policy/eviction.hpp>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace pagedkv::support {

/// Belady's optimum on prefix chains: evicts the block whose next reference is furthest away, the deepest of equals. A
/// reference to a block refers to its ancestors too, so theirs is never later, and leaves go first. A bound to compare
/// with: it has to be told the future.
class optimum {
 public:
  static constexpr std::string_view name = "optimum";
  static constexpr bool concurrent = false;

  explicit optimum(std::int32_t num_blocks) : keys_(static_cast<std::size_t>(num_blocks)) {}

  void expect(block_id block, prefix_trace::request_index next_use) { keys_[to_index(block)].next_use = next_use; }

  void insert(block_id block, const block_release& release) noexcept {
    keys_[to_index(block)].depth = release.depth;
    order_.insert({keys_[to_index(block)], block});
  }

  void remove(block_id block) noexcept { order_.erase({keys_[to_index(block)], block}); }
  void erase(block_id block) noexcept { remove(block); }

  void rename(block_id from, block_id to) noexcept {
    keys_[to_index(to)] = keys_[to_index(from)];
    if (order_.erase({keys_[to_index(from)], from}) != 0) {
      order_.insert({keys_[to_index(to)], to});
    }
  }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp) noexcept {
    const auto last = std::find_if(order_.rbegin(), order_.rend(),
                                   [&](const auto& entry) { return offer(entry.second) == eviction_answer::taken; });
    if (last == order_.rend()) {
      return no_block;
    }
    const auto block = last->second;
    remove(block);
    return block;
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return keys_.size() * sizeof(key); }

 private:
  struct key {
    prefix_trace::request_index next_use = 0;
    std::uint32_t depth = 0;

    friend auto operator<=>(const key&, const key&) = default;
  };

  std::vector<key> keys_;
  std::set<std::pair<key, block_id>> order_;
};

static_assert(clairvoyant<optimum>);

}  // namespace pagedkv::support
