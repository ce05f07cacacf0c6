#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/detail/block_bitmap.hpp>
#include <pagedkv/policy/eviction/parts/evictable_bitmap.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// The unreferenced blocks that had a twin, another block of equal contents, when either was published. A search asks
/// its caller about each, because twins come and go. Two bits per block; with an atomic `Atomic`, every member but
/// `rename` may be called from any thread.
template <template <class> class Atomic>
class twin_list {
 public:
  /// The answer of a search's caller about a block.
  enum class answer : std::uint8_t { taken, kept, dropped };

  explicit twin_list(std::int32_t num_blocks)
      : num_blocks_(static_cast<std::size_t>(num_blocks)), had_twin_(num_blocks), listed_(num_blocks_) {}

  /// A block has a twin.
  void note(block_id block, bool unreferenced) noexcept {
    had_twin_.insert(block);
    if (unreferenced) {
      list(block);
    }
  }

  /// A block lost its last reference.
  void release(block_id block) noexcept {
    if (had_twin_.contains(block)) {
      list(block);
    }
  }

  /// A block is referenced again. A search drops one that another thread lists meanwhile.
  void reference(block_id block) noexcept {
    if (num_listed_.load(std::memory_order_relaxed) != 0 && had_twin_.contains(block)) {
      unlist(block);
    }
  }

  /// Calls `ask(id)` on a few blocks until one is taken. Each search continues after the last one, so blocks that are
  /// kept do not hide others for long. After one that found only such blocks, the next ones find nothing, so that their
  /// cost is spread; a block that is listed meanwhile ends that. One load if there are none.
  template <class Ask>
  [[nodiscard]] block_id search(Ask&& ask) noexcept {
    constexpr auto most_asked = std::int64_t{16};
    constexpr auto pause = std::int32_t{64};
    const auto num_listed = num_listed_.load(std::memory_order_relaxed);
    if (num_listed <= 0) {
      return no_block;
    }
    if (pause_.load(std::memory_order_relaxed) > 0) {
      pause_.fetch_sub(1, std::memory_order_relaxed);
      return no_block;
    }
    auto all_kept = true;
    // One more than there are: the first may be behind the end.
    for (auto left = std::min(most_asked, num_listed + 1); left > 0; --left) {
      const auto found = listed_.find(next_.load(std::memory_order_relaxed));
      if (found == num_blocks_) {
        next_.store(0, std::memory_order_relaxed);
        continue;
      }
      next_.store(found + 1, std::memory_order_relaxed);
      const auto said = ask(to_block(found));
      if (said != answer::kept) {
        all_kept = false;
        unlist(to_block(found));
      }
      if (said == answer::taken) {
        return to_block(found);
      }
    }
    if (all_kept) {
      pause_.store(pause, std::memory_order_relaxed);
    }
    return no_block;
  }

  /// Compaction: `to`, which is free, replaces `from`.
  void rename(block_id from, block_id to) noexcept {
    had_twin_.contains(from) ? had_twin_.insert(to) : had_twin_.erase(to);
    if (unlist(from)) {
      list(to);
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return had_twin_.metadata_bytes() + listed_.bytes(); }

 private:
  void list(block_id block) noexcept {
    if (listed_.set(to_index(block))) {
      pause_.store(0, std::memory_order_relaxed);
      num_listed_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  bool unlist(block_id block) noexcept {
    const auto was_listed = listed_.reset(to_index(block));
    num_listed_.fetch_sub(was_listed ? 1 : 0, std::memory_order_relaxed);
    return was_listed;
  }

  std::size_t num_blocks_;
  block_bitmap<Atomic> had_twin_;
  evictable_bitmap<Atomic> listed_;
  Atomic<std::int64_t> num_listed_{0};
  Atomic<std::size_t> next_{0};
  Atomic<std::int32_t> pause_{0};  // searches that still find nothing
};

}  // namespace pagedkv
