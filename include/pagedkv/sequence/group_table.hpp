#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/sequence/block_table.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv {

/// One sequence's blocks in one group, in order: those of leading tokens that stay (sinks), then those from the first
/// kept one on. The table does not grow with a sequence whose group has a window.
///
/// A *place* counts blocks from the start of the sequence, dropped ones included.
class group_table {
 public:
  /// All entries, as kernels take them.
  [[nodiscard]] std::span<const block_id> all() const noexcept { return blocks_; }
  [[nodiscard]] std::size_t num_sinks() const noexcept { return num_sinks_; }
  /// The place of the first entry behind the sinks, and the one behind the last entry.
  [[nodiscard]] std::size_t first() const noexcept { return first_; }
  [[nodiscard]] std::size_t end() const noexcept { return first_ + blocks_.size() - num_sinks_; }
  /// The block at a place before the end; `no_block` where the sequence dropped it.
  [[nodiscard]] block_id operator[](std::size_t place) const noexcept {
    assert(place < end());
    return place >= first_ || place < num_sinks_ ? blocks_[entry_of(place)] : no_block;
  }
  [[nodiscard]] bool is_held(std::size_t place) const noexcept {
    return place < num_sinks_ || (place >= first_ && place < end());
  }
  /// Blocks between the sinks and the first kept one. Kernels see a sequence that is shorter by their tokens.
  [[nodiscard]] std::size_t num_skipped() const noexcept { return first_ - num_sinks_; }

  /// Counts changes to existing entries; appending changes none.
  [[nodiscard]] std::uint32_t version() const noexcept { return version_; }

  /// Reserves memory for `size` entries in all. Throws `std::bad_alloc`.
  void reserve(std::size_t size) {
    if (size > blocks_.capacity()) {
      blocks_.reserve(std::max(size, 2 * blocks_.capacity()));
    }
  }
  /// Reserves room; false when memory is exhausted.
  [[nodiscard]] bool try_reserve(std::size_t size) noexcept {
    const auto reserved = [&] {
      reserve(size);
      return true;
    };
    return detail::with_memory(reserved, false);
  }

  /// Starts an empty table that holds sinks and the places from `first` on; the caller appends both in this order.
  void start(std::size_t num_sinks, std::size_t first) noexcept {
    blocks_.clear();
    num_sinks_ = first > num_sinks ? num_sinks : 0;
    first_ = first > num_sinks ? first : 0;
    ++version_;
  }

  /// Appends entries, which the caller fills in. Requires reserved memory.
  [[nodiscard]] std::span<block_id> extend(std::size_t count) noexcept {
    blocks_.resize(blocks_.size() + count, no_block);
    return std::span<block_id>(blocks_).last(count);  // nvcc cannot name what GCC 13's library deduces
  }
  /// The last entries, for the caller to fill in.
  [[nodiscard]] std::span<block_id> last(std::size_t count) noexcept {
    return std::span<block_id>(blocks_).last(count);
  }
  /// Removes the last entries, which no kernel was given.
  void withdraw(std::size_t count) noexcept { blocks_.resize(blocks_.size() - count); }

  /// Removes the entries from a place on, which is not before the first kept one.
  void shrink(std::size_t end) noexcept {
    blocks_.resize(num_sinks_ + end - first_);
    ++version_;
  }

  void replace(std::size_t place, block_id block) noexcept {
    blocks_[entry_of(place)] = block;
    ++version_;
  }

  /// Whether there are entries before a place, except the first `num_sinks`.
  [[nodiscard]] bool drops_before(std::size_t place, std::size_t num_sinks) const noexcept {
    return std::min(place, end()) > std::max(first_, num_sinks);
  }
  /// Removes the entries before a place, except the first `num_sinks`; calls `drop(block, place)` on each, the last one
  /// first.
  template <class Drop>
  void drop_before(std::size_t place, std::size_t num_sinks, Drop&& drop) noexcept {
    if (!drops_before(place, num_sinks)) {
      return;
    }
    place = std::min(place, end());
    const auto from = std::max(first_, num_sinks);
    for (auto i = place; i > from; --i) {
      drop(blocks_[entry_of(i - 1)], i - 1);
    }
    const auto begin = blocks_.begin() + static_cast<std::ptrdiff_t>(entry_of(from));
    blocks_.erase(begin, begin + static_cast<std::ptrdiff_t>(place - from));
    num_sinks_ = num_sinks;
    first_ = place;
    ++version_;
  }

  /// Calls `visit(block, place, above)` on the entries from a place on, the last one first. `above`: the entry of the
  /// place before; `no_block` if that was dropped.
  template <class Visit>
  [[gnu::always_inline]] void for_each_from(std::size_t from, Visit&& visit) const noexcept {
    for (auto i = blocks_.size(); i-- > 0;) {
      const auto place = i < num_sinks_ ? i : first_ + i - num_sinks_;
      if (place < from) {
        return;
      }
      visit(blocks_[i], place, i == num_sinks_ || i == 0 ? no_block : blocks_[i - 1]);
    }
  }

  /// Applies `new_id(block)` to every entry.
  template <class NewId>
  void rename(NewId&& new_id) noexcept {
    std::ranges::transform(blocks_, blocks_.begin(), new_id);
    ++version_;
  }

  /// Keeps the memory for the next sequence that gets this record.
  void clear() noexcept { start(0, 0); }

  /// Copies the entries of another table. Requires reserved memory.
  void copy(const group_table& other) noexcept {
    blocks_.assign(other.blocks_.begin(), other.blocks_.end());
    num_sinks_ = other.num_sinks_;
    first_ = other.first_;
    ++version_;
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return blocks_.capacity() * sizeof(block_id); }

 private:
  [[nodiscard]] std::size_t entry_of(std::size_t place) const noexcept {
    return place < first_ ? place : num_sinks_ + place - first_;
  }

  std::vector<block_id> blocks_;
  std::size_t num_sinks_ = 0;
  std::size_t first_ = 0;
  std::uint32_t version_ = 0;
};

/// Slots of the tokens from `first_token` on, one for each element of `slots`; `skip_slot` in blocks that were dropped.
inline void fill_slots(const group_table& blocks, std::int32_t block_size, std::int64_t first_token,
                       std::span<slot> slots) noexcept {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto position = first_token + static_cast<std::int64_t>(i);
    const auto block = blocks[static_cast<std::size_t>(position / block_size)];
    slots[i] = block == no_block ? skip_slot : make_slot(block, block_size, position % block_size);
  }
}

}  // namespace pagedkv
