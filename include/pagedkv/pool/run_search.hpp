#pragma once

#include <pagedkv/policy/free_list/concept.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/pool/block_chains.hpp>
#include <pagedkv/pool/block_states.hpp>
#include <pagedkv/pool/run_free_list.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace pagedkv {

/// Finds blocks whose eviction completes an octet of the free list: the octet's evictable blocks, with all that is
/// cached behind them, so that a chain loses nothing but its tail. All of them have been evictable for long, measured
/// by the blocks that were released since. 8 bytes per block.
template <locking Locking, free_list_policy FreeList>
class run_search {
 public:
  explicit run_search(std::int32_t num_blocks)
      : released_(static_cast<std::size_t>(num_blocks), 0), children_(static_cast<std::size_t>(num_blocks), no_block) {}

  /// A block became evictable, or will when its step has retired.
  void insert(block_id block, block_id parent) noexcept {
    released_[to_index(block)] = ++num_released_;
    if (parent != no_block) {
      children_[to_index(parent)] = block;
    }
  }
  /// The eviction policy chose this block.
  void note_turn(block_id block) noexcept {
    const auto age = std::uint64_t{age_of(block)};
    age_at_turn_ = age_at_turn_ == 0 ? age : (7 * age_at_turn_ + age) / 8;
  }
  /// Compaction: `to`, which is free, replaces `from`. After all moves, `rename_children` applies `new_id(old id)` to
  /// the links between blocks.
  void rename(block_id from, block_id to) noexcept {
    released_[to_index(to)] = released_[to_index(from)];
    children_[to_index(to)] = children_[to_index(from)];
  }
  template <class NewId>
  void rename_children(NewId&& new_id) noexcept {
    std::ranges::transform(children_, children_.begin(), new_id);
  }

  /// Blocks whose eviction completes an octet, no more than `most`, parents before children; none if there is no such
  /// octet. The search goes on where the last one ended, for at most `patience` octets, which it counts down.
  template <linked_chains Chains>
  [[nodiscard]] std::span<const block_id> find(const run_free_list& free, std::size_t num_octets,
                                               const block_states<Locking>& all, const Chains& chains,
                                               std::size_t most, std::size_t& patience) noexcept {
    for (; patience > 0; --patience) {
      hand_ = hand_ + 1 < num_octets ? hand_ + 1 : 0;
      const auto num_found = gather(hand_, free.free_in(hand_), all, chains, std::min(most, found_.size()));
      if (num_found != 0) {
        return std::span{found_}.first(num_found);
      }
    }
    return {};
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return released_.capacity() * sizeof(std::uint32_t) + children_.capacity() * sizeof(block_id);
  }

 private:
  static constexpr auto octet_size = run_free_list::octet_size;

  [[nodiscard]] std::uint32_t age_of(block_id block) const noexcept {
    return num_released_ - released_[to_index(block)];
  }

  [[nodiscard]] bool may_go(block_id block, const block_states<Locking>& all) const noexcept {
    return std::uint64_t{age_of(block)} * 100 >= age_at_turn_ * FreeList::least_age && all.words[block].evictable();
  }

  /// Writes the blocks that complete an octet to `found_`, and returns their number: 0 if they may not go.
  template <linked_chains Chains>
  [[nodiscard]] std::size_t gather(std::size_t octet, std::uint32_t free, const block_states<Locking>& all,
                                   const Chains& chains, std::size_t most) noexcept {
    auto size = std::size_t{0};
    for (auto missing = ~free & 0xffU; missing != 0; missing &= missing - 1) {
      const auto block = to_block(octet * octet_size + static_cast<std::size_t>(std::countr_zero(missing)));
      if (size == most || age_at_turn_ == 0 || !may_go(block, all)) {
        return 0;
      }
      found_[size++] = block;
    }
    for (std::size_t i = 0; i < size; ++i) {
      const auto num_children = chains.num_children(found_[i]);
      if (num_children == 0) {
        continue;
      }
      const auto child = children_[to_index(found_[i])];
      if (num_children > 1 || child == no_block || chains.parent(child) != found_[i] || !may_go(child, all)) {
        return 0;
      }
      if (to_index(child) / octet_size != octet) {
        if (size == most) {
          return 0;
        }
        found_[size++] = child;
      }
    }
    return size;
  }

  std::vector<std::uint32_t> released_;  // the number of blocks that had been released by then
  std::vector<block_id> children_;       // the one released last, perhaps gone since
  std::uint32_t num_released_ = 0;
  std::uint64_t age_at_turn_ = 0;  // a running mean; 0 before the first eviction
  std::size_t hand_ = 0;
  std::array<block_id, 32> found_{};
};

/// Where the free list has no preference.
struct no_run_search {
  explicit no_run_search(std::int32_t) noexcept {}
  static void insert(block_id, block_id) noexcept {}
  static void rename(block_id, block_id) noexcept {}
  template <class NewId>
  static void rename_children(NewId&&) noexcept {}
  [[nodiscard]] static std::size_t metadata_bytes() noexcept { return 0; }
};

template <locking Locking, free_list_policy FreeList>
using run_search_for = std::conditional_t<FreeList::prefers_runs, run_search<Locking, FreeList>, no_run_search>;

}  // namespace pagedkv
