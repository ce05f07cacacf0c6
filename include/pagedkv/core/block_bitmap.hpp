#pragma once

#include <pagedkv/core/ids.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace pagedkv {

/// A set of block ids: one bit each, and one summary bit per 64, so that a sweep skips empty stretches. With an atomic
/// `Atomic`, every member may be called from any thread; a sweep then sees each id that was in the set throughout.
///
/// Inserting and sweeping are sequentially consistent: of a thread that inserts and then reads a word, and one that writes that
/// word and then sweeps, one sees what the other wrote.
template <template <class> class Atomic>
class block_bitmap {
 public:
  explicit block_bitmap(std::int32_t num_blocks)
      : num_words_((static_cast<std::size_t>(num_blocks) + 63) / 64),
        num_summaries_((num_words_ + 63) / 64),
        words_(std::make_unique<word[]>(num_words_)),
        summaries_(std::make_unique<word[]>(num_summaries_)) {}

  void insert(block_id block) noexcept {
    const auto index = to_index(block);
    words_[index / 64].fetch_or(bit(index), std::memory_order_seq_cst);
    summaries_[index / 4096].fetch_or(bit(index / 64), std::memory_order_seq_cst);
  }

  void erase(block_id block) noexcept {
    const auto index = to_index(block);
    const auto left = words_[index / 64].fetch_and(~bit(index), std::memory_order_acq_rel) & ~bit(index);
    if (left == 0) {
      summaries_[index / 4096].fetch_and(~bit(index / 64), std::memory_order_acq_rel);
      // An insert between the two steps set the summary before it was cleared: set it again on its behalf.
      if (words_[index / 64].load(std::memory_order_acquire) != 0) {
        summaries_[index / 4096].fetch_or(bit(index / 64), std::memory_order_acq_rel);
      }
    }
  }

  /// Calls `visit(id)` for every id in the set, ascending. `visit` may erase the id it was given.
  template <class Visit>
  void for_each(Visit&& visit) {
    for (std::size_t summary = 0; summary < num_summaries_; ++summary) {
      for_each_bit(summaries_[summary].load(std::memory_order_seq_cst), summary * 64, [&](std::size_t index) {
        for_each_bit(words_[index].load(std::memory_order_seq_cst), index * 64,
                     [&](std::size_t block) { visit(to_block(block)); });
      });
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return (num_words_ + num_summaries_) * sizeof(word); }

 private:
  using word = Atomic<std::uint64_t>;

  [[nodiscard]] static constexpr std::uint64_t bit(std::size_t index) noexcept {
    return std::uint64_t{1} << (index % 64);
  }

  template <class Visit>
  static void for_each_bit(std::uint64_t bits, std::size_t first, Visit&& visit) {
    for (; bits != 0; bits &= bits - 1) {
      visit(first + static_cast<std::size_t>(std::countr_zero(bits)));
    }
  }

  std::size_t num_words_;
  std::size_t num_summaries_;
  std::unique_ptr<word[]> words_;
  std::unique_ptr<word[]> summaries_;
};

}  // namespace pagedkv
