#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv {

/// Estimates how often a hash was seen lately: a count-min sketch of 4-bit counters in four rows, 8 to 16 bytes per
/// block. Every counter is halved once in ten records per block, a few at a time.
class frequency_sketch {
 public:
  explicit frequency_sketch(std::int32_t num_blocks)
      : row_words_(std::bit_ceil(static_cast<std::size_t>(num_blocks) / num_rows + 1)),
        words_(row_words_ * num_rows, 0),
        period_(std::uint64_t{10} * static_cast<std::uint64_t>(num_blocks)) {}

  void record(std::uint64_t hash) noexcept {
    for (auto row = std::size_t{0}; row < num_rows; ++row) {
      const auto [word, shift] = locate(hash, row);
      if ((words_[word] >> shift & max_count) != max_count) {
        words_[word] += std::uint64_t{1} << shift;
      }
    }
    for (progress_ += words_.size(); progress_ >= period_; progress_ -= period_) {
      words_[halved_] = words_[halved_] >> 1 & 0x7777777777777777U;
      halved_ = (halved_ + 1) & (words_.size() - 1);  // a power of two
    }
  }

  [[nodiscard]] std::uint32_t estimate(std::uint64_t hash) const noexcept {
    auto least = max_count;
    for (auto row = std::size_t{0}; row < num_rows; ++row) {
      const auto [word, shift] = locate(hash, row);
      least = std::min(least, words_[word] >> shift & max_count);
    }
    return static_cast<std::uint32_t>(least);
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return words_.capacity() * sizeof(std::uint64_t); }

 private:
  static constexpr auto num_rows = std::size_t{4};
  static constexpr auto counters_per_word = std::size_t{16};
  static constexpr auto max_count = std::uint64_t{15};

  struct counter {
    std::size_t word;
    std::size_t shift;
  };

  [[nodiscard]] counter locate(std::uint64_t hash, std::size_t row) const noexcept {
    static constexpr auto seeds = std::array<std::uint64_t, num_rows>{0x9e3779b97f4a7c15U, 0xc2b2ae3d27d4eb4fU,
                                                                      0x165667b19e3779f9U, 0xd6e8feb86659fd93U};
    const auto mixed = static_cast<std::size_t>((hash ^ hash >> 31) * seeds[row] >> 24);
    return {row * row_words_ + (mixed / counters_per_word & (row_words_ - 1)), mixed % counters_per_word * 4};
  }

  std::size_t row_words_;
  std::vector<std::uint64_t> words_;
  std::uint64_t period_;        // records in which every word is halved once
  std::uint64_t progress_ = 0;  // words per record go by in steps of words.size() / period
  std::size_t halved_ = 0;      // next word to halve
};

}  // namespace pagedkv
