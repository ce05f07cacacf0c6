#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pagedkv {

/// Block ids by deadline, earliest first: a binary heap with the position of each id. Logarithmic time; 24 bytes per
/// block.
class deadline_heap {
 public:
  explicit deadline_heap(std::int32_t num_blocks)
      : positions_(static_cast<std::size_t>(num_blocks), absent), heap_(static_cast<std::size_t>(num_blocks)) {}

  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }

  /// The first of a heap that is not empty.
  [[nodiscard]] block_id earliest() const noexcept { return heap_[0].block; }
  [[nodiscard]] timestamp earliest_deadline() const noexcept { return heap_[0].deadline; }

  /// Replaces an earlier deadline.
  void set(block_id block, timestamp deadline) noexcept {
    erase(block);
    settle({deadline, block}, size_++);
  }

  /// Does nothing when the id is absent.
  void erase(block_id block) noexcept {
    if (empty()) {
      return;
    }
    const auto at = std::exchange(positions_[to_index(block)], absent);
    if (at == absent) {
      return;
    }
    const auto last = heap_[--size_];
    if (last.block != block) {
      settle(last, at);
    }
  }

  void rename(block_id from, block_id to) noexcept {
    if (const auto at = positions_[to_index(from)]; at != absent) {
      const auto deadline = heap_[at].deadline;
      erase(from);
      set(to, deadline);
    }
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return positions_.capacity() * sizeof(std::uint32_t) + heap_.capacity() * sizeof(entry);
  }

 private:
  struct entry {
    timestamp deadline{};
    block_id block = no_block;
  };

  static constexpr auto absent = UINT32_MAX;

  void put(const entry& e, std::uint32_t at) noexcept {
    heap_[at] = e;
    positions_[to_index(e.block)] = at;
  }

  /// Puts an entry at `at`, whose own entry is gone, or as far up or down from there as the order requires.
  void settle(const entry& e, std::uint32_t at) noexcept {
    for (; at > 0 && e.deadline < heap_[(at - 1) / 2].deadline; at = (at - 1) / 2) {
      put(heap_[(at - 1) / 2], at);
    }
    for (auto child = 2 * at + 1; child < size_; child = 2 * at + 1) {
      child += child + 1 < size_ && heap_[child + 1].deadline < heap_[child].deadline ? 1U : 0U;
      if (e.deadline <= heap_[child].deadline) {
        break;
      }
      put(heap_[child], at);
      at = child;
    }
    put(e, at);
  }

  std::vector<std::uint32_t> positions_;
  std::vector<entry> heap_;
  std::uint32_t size_ = 0;
};

}  // namespace pagedkv
