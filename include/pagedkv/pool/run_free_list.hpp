#pragma once

#include <pagedkv/policy/eviction/parts/evictable_bitmap.hpp>
#include <pagedkv/policy/locking/parts/unsynchronized.hpp>
#include <pagedkv/pool/free_list.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv {

/// Free blocks by *groups* of eight ids, the first a multiple of eight. `take` hands out whole groups for as many
/// blocks as fill them, and single blocks from the groups with the fewest free ones, so that whole groups stay whole.
/// Groups are found through bitmaps with a summary, one for each number of free blocks. Less than 3 bits per block.
class run_free_list {
 public:
  static constexpr auto group_size = std::size_t{8};

  explicit run_free_list(std::int32_t num_blocks) : num_blocks_(static_cast<std::size_t>(num_blocks)) {
    assert(num_blocks >= 0);
    groups_.resize((num_blocks_ + group_size - 1) / group_size, 0);
    for (auto& level : levels_) {
      level = bitmap{groups_.size()};
    }
    for (std::size_t i = 0; i < num_blocks_; ++i) {
      push(to_block(i));
    }
  }

  [[nodiscard]] block_id pop() noexcept {
    auto block = no_block;
    static_cast<void>(take({&block, 1}));
    return block;
  }

  /// Fills `blocks` as far as there are free ones, and returns how many it filled.
  [[nodiscard]] std::size_t take(std::span<block_id> blocks) noexcept {
    auto num_taken = std::size_t{0};
    auto next = groups_.size();  // the group behind the last one taken
    while (blocks.size() - num_taken >= group_size && num_whole_ > 0) {
      if (next == groups_.size() || groups_[next] != whole) {
        next = levels_[group_size - 1].find(0);
      }
      num_taken += take_from_group(next++, blocks.subspan(num_taken, group_size));
    }
    if (next < groups_.size() && (groups_[next] & 1U) != 0 && groups_[next] != whole) {
      const auto leading = static_cast<std::size_t>(std::countr_one(groups_[next]));
      num_taken += take_from_group(next, blocks.subspan(num_taken, std::min(leading, blocks.size() - num_taken)));
    }
    while (num_taken < blocks.size() && size_ > 0) {
      num_taken += take_from_group(fullest_group(), blocks.subspan(num_taken));
    }
    return num_taken;
  }

  void push(block_id block) noexcept {
    const auto index = to_index(block);
    assert(!contains(index) && "pushed twice");
    change_group(index / group_size, groups_[index / group_size] | bit(index));
  }

  template <class Visit>
  void take_from(block_id first, Visit&& visit) noexcept {
    for (auto i = to_index(first); i < num_blocks_; ++i) {
      if (contains(i)) {
        change_group(i / group_size, groups_[i / group_size] & ~bit(i));
        visit(to_block(i));
      }
    }
  }

  [[nodiscard]] std::int32_t size() const noexcept { return size_; }
  /// Groups of which every block is free.
  [[nodiscard]] std::int32_t num_whole() const noexcept { return num_whole_; }
  [[nodiscard]] std::size_t num_groups() const noexcept { return groups_.size(); }
  /// The free blocks of a group, a bit each.
  [[nodiscard]] std::uint32_t free_in(std::size_t group) const noexcept { return groups_[group]; }

  template <class Visit>
  void for_each(Visit&& visit) const {
    for (std::size_t i = 0; i < num_blocks_; ++i) {
      if (contains(i)) {
        visit(to_block(i));
      }
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    auto sum = groups_.capacity();
    for (const auto& level : levels_) {
      sum += level.bytes();
    }
    return sum;
  }

 private:
  using bitmap = evictable_bitmap<unsynchronized>;

  static constexpr auto whole = std::uint32_t{0xff};

  [[nodiscard]] static std::uint32_t bit(std::size_t index) noexcept { return 1U << index % group_size; }
  [[nodiscard]] bool contains(std::size_t index) const noexcept {
    return (groups_[index / group_size] & bit(index)) != 0;
  }

  [[nodiscard]] std::size_t fullest_group() const noexcept {
    for (const auto& level : levels_) {
      if (const auto found = level.find(0); found < groups_.size()) {
        return found;
      }
    }
    return groups_.size();
  }

  std::size_t take_from_group(std::size_t group, std::span<block_id> blocks) noexcept {
    auto left = std::uint32_t{groups_[group]};
    auto num_taken = std::size_t{0};
    for (; left != 0 && num_taken < blocks.size(); left &= left - 1) {
      blocks[num_taken++] = to_block(group * group_size + static_cast<std::size_t>(std::countr_zero(left)));
    }
    change_group(group, left);
    return num_taken;
  }

  void change_group(std::size_t group, std::uint32_t free) noexcept {
    const auto before = std::popcount(groups_[group]);
    const auto after = std::popcount(free);
    if (before != 0) {
      levels_[static_cast<std::size_t>(before - 1)].reset(group);
    }
    if (after != 0) {
      levels_[static_cast<std::size_t>(after - 1)].set(group);
    }
    num_whole_ += static_cast<std::int32_t>(free == whole) - static_cast<std::int32_t>(groups_[group] == whole);
    size_ += after - before;
    groups_[group] = static_cast<std::uint8_t>(free);
  }

  std::size_t num_blocks_;
  std::vector<std::uint8_t> groups_;
  std::array<bitmap, group_size> levels_{bitmap{0}, bitmap{0}, bitmap{0}, bitmap{0},
                                         bitmap{0}, bitmap{0}, bitmap{0}, bitmap{0}};  // groups by free blocks
  std::int32_t size_ = 0;
  std::int32_t num_whole_ = 0;
};

static_assert(free_list<run_free_list>);

}  // namespace pagedkv
