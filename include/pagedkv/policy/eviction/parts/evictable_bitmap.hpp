#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pagedkv {

/// A set of indices for many threads, with a summary of one bit for every 64 indices, so that a search passes 4,096
/// absent ones at a step. Every operation but the searches is a few atomic instructions without a loop. `set` and
/// `reset` change one level and then look at the other, so they are sequentially consistent: of two that meet, one
/// sees the other's change.
template <template <class> class Atomic = std::atomic>
class evictable_bitmap {
 public:
  explicit evictable_bitmap(std::size_t size)
      : size_(size), words_(num_words(size)), summary_(num_words(words_.size())) {}

  [[nodiscard]] bool test(std::size_t i) const noexcept {
    return (words_[i / 64].load(std::memory_order_acquire) & bit(i)) != 0;
  }

  /// Releases the caller's earlier writes: a thread that finds the index sees them. Returns whether it was absent.
  bool set(std::size_t i) noexcept {
    const auto before = words_[i / 64].fetch_or(bit(i), std::memory_order_seq_cst);
    auto& above = summary_[i / 4096];
    if ((above.load(std::memory_order_seq_cst) & bit(i / 64)) == 0) {
      above.fetch_or(bit(i / 64), std::memory_order_seq_cst);
    }
    return (before & bit(i)) == 0;
  }

  /// Returns whether the index was present.
  bool reset(std::size_t i) noexcept {
    return (reset_in_word(i / 64, bit(i)) & bit(i)) != 0;
  }

  /// Resets indices, neighbours by one instruction: each one at the latest when this is destroyed.
  class [[nodiscard]] gathered_resets {
   public:
    explicit gathered_resets(evictable_bitmap& from) noexcept : from_(from) {}
    gathered_resets(const gathered_resets&) = delete;
    gathered_resets& operator=(const gathered_resets&) = delete;
    ~gathered_resets() { finish(); }

    void reset(std::size_t i) noexcept {
      if (i / 64 != word_) {
        finish();
        word_ = i / 64;
      }
      bits_ |= bit(i);
    }

   private:
    void finish() noexcept {
      if (bits_ != 0) {
        from_.reset_in_word(word_, std::exchange(bits_, 0));
      }
    }

    evictable_bitmap& from_;
    std::size_t word_ = 0;
    std::uint64_t bits_ = 0;  // of the word, those that are still to be reset
  };

  /// The first index at or after `from`, or the size. Follows the summary, which lags behind while a thread is inside
  /// `set` or `reset`: for as long as that thread is stopped there, an index may be missed.
  [[nodiscard]] std::size_t find(std::size_t from) const noexcept {
    if (from >= size_) {
      return size_;
    }
    if (const auto rest = words_[from / 64].load(std::memory_order_acquire) >> from % 64; rest != 0) {
      return from + lowest(rest);
    }
    auto word = from / 64 + 1;
    while (word < words_.size()) {
      const auto candidates = summary_[word / 64].load(std::memory_order_acquire) >> word % 64;
      if (candidates == 0) {
        word = (word / 64 + 1) * 64;
        continue;
      }
      word += lowest(candidates);
      if (const auto found = words_[word].load(std::memory_order_acquire); found != 0) {
        return word * 64 + lowest(found);
      }
      ++word;
    }
    return size_;
  }

  /// Searches without the summary: misses nothing that was set before the call and stays set.
  [[nodiscard]] std::size_t find_exhaustively(std::size_t from) const noexcept {
    for (auto word = from / 64; word < words_.size(); ++word) {
      const auto wanted = ~std::uint64_t{0} << (word == from / 64 ? from % 64 : 0);
      const auto found = words_[word].load(std::memory_order_acquire) & wanted;
      if (found != 0) {
        return word * 64 + lowest(found);
      }
    }
    return size_;
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return (words_.capacity() + summary_.capacity()) * sizeof(Atomic<std::uint64_t>);
  }

 private:
  /// Returns the word as it was.
  std::uint64_t reset_in_word(std::size_t index, std::uint64_t bits) noexcept {
    auto& word = words_[index];
    const auto before = word.fetch_and(~bits, std::memory_order_seq_cst);
    if ((before & ~bits) == 0) {
      auto& above = summary_[index / 64];
      above.fetch_and(~bit(index), std::memory_order_seq_cst);
      if (word.load(std::memory_order_seq_cst) != 0) {
        above.fetch_or(bit(index), std::memory_order_seq_cst);
      }
    }
    return before;
  }

  [[nodiscard]] static constexpr std::size_t num_words(std::size_t bits) noexcept { return (bits + 63) / 64; }
  [[nodiscard]] static constexpr std::uint64_t bit(std::size_t i) noexcept { return std::uint64_t{1} << i % 64; }
  [[nodiscard]] static std::size_t lowest(std::uint64_t bits) noexcept {
    return static_cast<std::size_t>(std::countr_zero(bits));
  }

  std::size_t size_;
  std::vector<Atomic<std::uint64_t>> words_;
  std::vector<Atomic<std::uint64_t>> summary_;
};

}  // namespace pagedkv
