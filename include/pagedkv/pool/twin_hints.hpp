#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/eviction/evictable_bitmap.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// Says whether a hint led to a block that was taken, holds still, or is out of date.
enum class hint_answer : std::uint8_t { taken, kept, dropped };

/// Published blocks that had a twin, another block of equal contents, when they were published. Only hints: a search
/// asks its caller about each. One bit a block; with an atomic `Atomic`, every member may be called from any thread.
template <template <class> class Atomic>
class twin_hints {
 public:
  explicit twin_hints(std::int32_t num_blocks)
      : num_blocks_(static_cast<std::size_t>(num_blocks)), hints_(num_blocks_) {}

  void insert(block_id block) noexcept {
    if (hints_.set(to_index(block))) {
      num_hints_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  /// Gives a few hints to `ask(id)`, which returns a `hint_answer`, until one is taken. Each search goes on where the
  /// last one ended, so hints that hold still hide others only for a while. One load where there are no hints.
  template <class Ask>
  [[nodiscard]] block_id search(Ask&& ask) noexcept {
    constexpr auto most_asked = 8;
    for (auto asked = 0; asked < most_asked && num_hints_.load(std::memory_order_relaxed) > 0; ++asked) {
      const auto found = hints_.find(next_.load(std::memory_order_relaxed));
      if (found == num_blocks_) {
        next_.store(0, std::memory_order_relaxed);
        continue;
      }
      next_.store(found + 1, std::memory_order_relaxed);
      const auto answer = ask(to_block(found));
      if (answer != hint_answer::kept) {
        erase(to_block(found));
      }
      if (answer == hint_answer::taken) {
        return to_block(found);
      }
    }
    return no_block;
  }

  /// No other thread is at work.
  void rename(block_id from, block_id to) noexcept {
    if (erase(from)) {
      insert(to);
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return hints_.bytes(); }

 private:
  bool erase(block_id block) noexcept {
    const auto erased = hints_.reset(to_index(block));
    num_hints_.fetch_sub(erased ? 1 : 0, std::memory_order_relaxed);
    return erased;
  }

  std::size_t num_blocks_;
  evictable_bitmap<Atomic> hints_;
  Atomic<std::int64_t> num_hints_{0};
  Atomic<std::size_t> next_{0};
};

}  // namespace pagedkv
