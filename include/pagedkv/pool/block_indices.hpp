#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace pagedkv {

/// An index for every block, initially its own number. Allocates 8 bytes per block at the first exchange.
class block_indices {
 public:
  explicit block_indices(std::int32_t num_blocks) noexcept : size_(static_cast<std::size_t>(num_blocks)) {}

  [[nodiscard]] std::size_t index_of(block_id block) const noexcept {
    return entries_ == nullptr ? to_index(block) : entries_[to_index(block)].index;
  }
  [[nodiscard]] block_id block_at(std::size_t index) const noexcept {
    return entries_ == nullptr ? to_block(index) : entries_[index].block;
  }

  /// Exchanges the indices of two blocks. Requires that no other thread uses the object. False when memory is
  /// exhausted; then nothing has changed.
  [[nodiscard]] bool swap(block_id a, block_id b) noexcept {
    if (entries_ == nullptr && !fill()) {
      return false;
    }
    auto& first = entries_[to_index(a)].index;
    auto& second = entries_[to_index(b)].index;
    std::swap(entries_[first].block, entries_[second].block);
    std::swap(first, second);
    return true;
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return entries_ == nullptr ? 0 : size_ * sizeof(entry); }

 private:
  /// Entry `i`: the index of block `i`, and the block with index `i`.
  struct entry {
    std::uint32_t index;
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
