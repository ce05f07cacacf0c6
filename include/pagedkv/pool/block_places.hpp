#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace pagedkv {

/// A place for every block, at first the one of its own number. Memory is taken when blocks first change places: 8
/// bytes per block.
class block_places {
 public:
  explicit block_places(std::int32_t num_blocks) noexcept : size_(static_cast<std::size_t>(num_blocks)) {}

  [[nodiscard]] std::size_t place_of(block_id block) const noexcept {
    return entries_ == nullptr ? to_index(block) : entries_[to_index(block)].place;
  }
  [[nodiscard]] block_id block_at(std::size_t place) const noexcept {
    return entries_ == nullptr ? to_block(place) : entries_[place].block;
  }

  /// Two blocks change places. No other thread is at work. False, and nothing has changed, when memory is exhausted.
  [[nodiscard]] bool swap(block_id a, block_id b) noexcept {
    if (entries_ == nullptr && !fill()) {
      return false;
    }
    auto& first = entries_[to_index(a)].place;
    auto& second = entries_[to_index(b)].place;
    std::swap(entries_[first].block, entries_[second].block);
    std::swap(first, second);
    return true;
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return entries_ == nullptr ? 0 : size_ * sizeof(entry); }

 private:
  /// Entry `i`: the place of block `i`, and the block at place `i`.
  struct entry {
    std::uint32_t place;
    block_id block;
  };

  [[nodiscard]] bool fill() noexcept {
    entries_.reset(new (std::nothrow) entry[size_]);
    for (std::size_t i = 0; entries_ != nullptr && i < size_; ++i) {
      entries_[i] = {static_cast<std::uint32_t>(i), to_block(i)};
    }
    return entries_ != nullptr;
  }

  std::size_t size_;
  std::unique_ptr<entry[]> entries_;
};

}  // namespace pagedkv
