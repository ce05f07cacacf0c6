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

/// Free blocks by *octets* of eight ids, the first a multiple of eight. `take` hands out whole octets for as many
/// blocks as fill them, and single blocks from the octets with the fewest free ones, so that whole octets stay whole.
/// Octets are found through bitmaps with a summary, one for each number of free blocks. Less than 3 bits per block.
class run_free_list {
 public:
  static constexpr auto octet_size = std::size_t{8};

  explicit run_free_list(std::int32_t num_blocks) : num_blocks_(static_cast<std::size_t>(num_blocks)) {
    assert(num_blocks >= 0);
    octets_.resize((num_blocks_ + octet_size - 1) / octet_size, 0);
    for (auto& level : levels_) {
      level = bitmap{octets_.size()};
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
    auto next = octets_.size();  // the octet behind the last one taken
    while (blocks.size() - num_taken >= octet_size && num_whole_ > 0) {
      if (next == octets_.size() || octets_[next] != whole) {
        next = levels_[octet_size - 1].find(0);
      }
      num_taken += take_from_octet(next++, blocks.subspan(num_taken, octet_size));
    }
    if (next < octets_.size() && (octets_[next] & 1U) != 0 && octets_[next] != whole) {
      const auto leading = static_cast<std::size_t>(std::countr_one(octets_[next]));
      num_taken += take_from_octet(next, blocks.subspan(num_taken, std::min(leading, blocks.size() - num_taken)));
    }
    while (num_taken < blocks.size() && size_ > 0) {
      num_taken += take_from_octet(fullest_octet(), blocks.subspan(num_taken));
    }
    return num_taken;
  }

  void push(block_id block) noexcept {
    const auto index = to_index(block);
    assert(!contains(index) && "pushed twice");
    change_octet(index / octet_size, octets_[index / octet_size] | bit(index));
  }

  template <class Visit>
  void take_from(block_id first, Visit&& visit) noexcept {
    for (auto i = to_index(first); i < num_blocks_; ++i) {
      if (contains(i)) {
        change_octet(i / octet_size, octets_[i / octet_size] & ~bit(i));
        visit(to_block(i));
      }
    }
  }

  [[nodiscard]] std::int32_t size() const noexcept { return size_; }
  /// Octets of which every block is free.
  [[nodiscard]] std::int32_t num_whole() const noexcept { return num_whole_; }
  [[nodiscard]] std::size_t num_octets() const noexcept { return octets_.size(); }
  /// The free blocks of an octet, a bit each.
  [[nodiscard]] std::uint32_t free_in(std::size_t octet) const noexcept { return octets_[octet]; }

  template <class Visit>
  void for_each(Visit&& visit) const {
    for (std::size_t i = 0; i < num_blocks_; ++i) {
      if (contains(i)) {
        visit(to_block(i));
      }
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    auto sum = octets_.capacity();
    for (const auto& level : levels_) {
      sum += level.bytes();
    }
    return sum;
  }

 private:
  using bitmap = evictable_bitmap<unsynchronized>;

  static constexpr auto whole = std::uint32_t{0xff};

  [[nodiscard]] static std::uint32_t bit(std::size_t index) noexcept { return 1U << index % octet_size; }
  [[nodiscard]] bool contains(std::size_t index) const noexcept {
    return (octets_[index / octet_size] & bit(index)) != 0;
  }

  [[nodiscard]] std::size_t fullest_octet() const noexcept {
    for (const auto& level : levels_) {
      if (const auto found = level.find(0); found < octets_.size()) {
        return found;
      }
    }
    return octets_.size();
  }

  std::size_t take_from_octet(std::size_t octet, std::span<block_id> blocks) noexcept {
    auto left = std::uint32_t{octets_[octet]};
    auto num_taken = std::size_t{0};
    for (; left != 0 && num_taken < blocks.size(); left &= left - 1) {
      blocks[num_taken++] = to_block(octet * octet_size + static_cast<std::size_t>(std::countr_zero(left)));
    }
    change_octet(octet, left);
    return num_taken;
  }

  void change_octet(std::size_t octet, std::uint32_t free) noexcept {
    const auto before = std::popcount(octets_[octet]);
    const auto after = std::popcount(free);
    if (before != 0) {
      levels_[static_cast<std::size_t>(before - 1)].reset(octet);
    }
    if (after != 0) {
      levels_[static_cast<std::size_t>(after - 1)].set(octet);
    }
    num_whole_ += static_cast<std::int32_t>(free == whole) - static_cast<std::int32_t>(octets_[octet] == whole);
    size_ += after - before;
    octets_[octet] = static_cast<std::uint8_t>(free);
  }

  std::size_t num_blocks_;
  std::vector<std::uint8_t> octets_;
  std::array<bitmap, octet_size> levels_{bitmap{0}, bitmap{0}, bitmap{0}, bitmap{0},
                                         bitmap{0}, bitmap{0}, bitmap{0}, bitmap{0}};  // octets by free blocks
  std::int32_t size_ = 0;
  std::int32_t num_whole_ = 0;
};

static_assert(free_list<run_free_list>);

}  // namespace pagedkv
