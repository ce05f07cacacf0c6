#pragma once

#include <pagedkv/core/ids.hpp>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace pagedkv {

/// A set of block ids, one bit each. A sweep skips 16,384 absent ids at a time, and 64 where others are near. With an
/// atomic `Atomic`, every member may be called from any thread; a sweep then visits each id that is in the set
/// throughout.
///
/// Inserting and sweeping are sequentially consistent. If one thread inserts and then reads a word, and another writes
/// that word and then sweeps, at least one of them sees the other's write. An insertion counts before it sets its bit,
/// and an erasure after it has cleared the bit: so a count is never less than the number of its bits.
template <template <class> class Atomic>
class block_bitmap {
 public:
  explicit block_bitmap(std::int32_t num_blocks)
      : num_words_((static_cast<std::size_t>(num_blocks) + 63) / 64),
        words_(std::make_unique<word[]>(num_words_)),
        counts_(std::make_unique<count[]>(num_counts())) {}

  void insert(block_id block) noexcept {
    count_of(block).fetch_add(1, std::memory_order_seq_cst);
    if ((word_of(block).fetch_or(bit(block), std::memory_order_seq_cst) & bit(block)) != 0) {
      count_of(block).fetch_sub(1, std::memory_order_acq_rel);
    }
  }
  void erase(block_id block) noexcept {
    if ((word_of(block).fetch_and(~bit(block), std::memory_order_acq_rel) & bit(block)) != 0) {
      count_of(block).fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  [[nodiscard]] bool contains(block_id block) const noexcept {
    return (words_[to_index(block) / 64].load(std::memory_order_acquire) & bit(block)) != 0;
  }

  /// Calls `visit(id)` for every id in the set, ascending. `visit` may erase this id.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (std::size_t i = 0; i < num_words_; ++i) {
      if (i % words_per_count == 0 && counts_[i / words_per_count].load(std::memory_order_seq_cst) == 0) {
        i += words_per_count - 1;
        continue;
      }
      for (auto bits = words_[i].load(std::memory_order_seq_cst); bits != 0; bits &= bits - 1) {
        visit(to_block(64 * i + static_cast<std::size_t>(std::countr_zero(bits))));
      }
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return num_words_ * sizeof(word) + num_counts() * sizeof(count);
  }

 private:
  using word = Atomic<std::uint64_t>;
  using count = Atomic<std::uint32_t>;
  static constexpr auto words_per_count = std::size_t{256};

  [[nodiscard]] word& word_of(block_id block) noexcept { return words_[to_index(block) / 64]; }
  [[nodiscard]] count& count_of(block_id block) noexcept { return counts_[to_index(block) / 64 / words_per_count]; }
  [[nodiscard]] std::size_t num_counts() const noexcept {
    return (num_words_ + words_per_count - 1) / words_per_count;
  }
  [[nodiscard]] static std::uint64_t bit(block_id block) noexcept { return std::uint64_t{1} << to_index(block) % 64; }

  std::size_t num_words_;
  std::unique_ptr<word[]> words_;
  std::unique_ptr<count[]> counts_;  // of the ids in the set, one for `words_per_count` words
};

}  // namespace pagedkv
