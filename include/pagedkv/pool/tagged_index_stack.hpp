#pragma once

#include <pagedkv/policy/locking/parts/contention.hpp>

#include <cstdint>
#include <memory>

namespace pagedkv {

/// Stack of indices below 2^32 - 1, linked through an array (after Treiber, "Systems programming: coping with
/// parallelism", 1986). A tag beside the top index counts pushes: a pop fails if its index was popped and pushed again
/// meanwhile, unless exactly a multiple of 2^32 pushes came between. Every member is lock-free.
template <template <class> class Atomic, contention_metrics Metrics = no_contention_metrics>
class tagged_index_stack {
 public:
  static constexpr std::uint32_t none = 0xffff'ffff;

  /// One link for every index. Stacks that never hold the same index may share them.
  using links = std::unique_ptr<Atomic<std::uint32_t>[]>;

  /// The top index and the number of pushes so far, modulo 2^32. Equal words mean that nothing was pushed in between.
  using word = std::uint64_t;

  [[nodiscard]] static constexpr std::uint32_t index_of(word top) noexcept { return static_cast<std::uint32_t>(top); }

  [[nodiscard]] word top() const noexcept { return top_.load(std::memory_order_acquire); }

  void push(links& next, std::uint32_t index) noexcept {
    auto seen = top_.load(std::memory_order_relaxed);
    for (;;) {
      next[index].store(index_of(seen), std::memory_order_relaxed);
      if (top_.compare_exchange_weak(seen, ((seen >> 32) + 1) << 32 | index, std::memory_order_release,
                                     std::memory_order_relaxed)) {
        return;
      }
      metrics_.retried();
    }
  }

  /// Takes the top, or leaves `seen` as the word that showed the stack empty. Calls `announce` with each index before
  /// the attempt to take it; a thread that then sees the stack without the index sees the effects of `announce`.
  template <class Announce>
  [[nodiscard]] std::uint32_t pop(const links& next, word& seen, Announce&& announce) noexcept {
    seen = top();
    while (index_of(seen) != none) {
      const auto index = index_of(seen);
      announce(index);
      const auto below = next[index].load(std::memory_order_relaxed);
      if (top_.compare_exchange_weak(seen, seen >> 32 << 32 | below, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
        return index;
      }
      metrics_.retried();
    }
    return none;
  }

  [[nodiscard]] std::uint32_t pop(const links& next) noexcept {
    auto seen = word{};
    return pop(next, seen, [](std::uint32_t) {});
  }

  /// Takes the top only if it has not changed since `seen` was read.
  [[nodiscard]] bool pop_unchanged(const links& next, word seen) noexcept {
    const auto below = next[index_of(seen)].load(std::memory_order_relaxed);
    return top_.compare_exchange_strong(seen, seen >> 32 << 32 | below, std::memory_order_acq_rel,
                                        std::memory_order_relaxed);
  }

  /// Requires that no other thread uses the stack. Visits at most `most`: an index that was pushed twice is below
  /// itself.
  template <class Visit>
  void for_each(const links& next, std::uint32_t most, Visit&& visit) const {
    auto index = index_of(top());
    for (auto i = std::uint32_t{0}; i < most && index != none;
         ++i, index = next[index].load(std::memory_order_relaxed)) {
      visit(index);
    }
  }

  [[nodiscard]] contention_counts contention() const noexcept { return metrics_.counts(); }

 private:
  Atomic<word> top_{none};
  [[no_unique_address]] Metrics metrics_;
};

}  // namespace pagedkv
