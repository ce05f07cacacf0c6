#pragma once

#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/parts/chain_lists.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv::detail {

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
}  // namespace pagedkv::detail

namespace pagedkv {

/// W-TinyLFU (Einziger, Friedman and Manes, 2017): new blocks enter an LRU window of a hundredth of the pool. A
/// block that leaves it stays only if its recent frequency is above that of the next victim of the main part, a
/// segmented LRU.
class tiny_lfu {
 public:
  static constexpr std::string_view name = "tiny_lfu";
  static constexpr bool concurrent = false;

  explicit tiny_lfu(std::int32_t num_blocks)
      : window_limit_(std::max(1, num_blocks / 100)),
        protected_limit_((num_blocks - window_limit_) / 5 * 4),
        lists_(num_blocks, 3),
        sketch_(num_blocks),
        hashes_(static_cast<std::size_t>(num_blocks), 0) {}

  void insert(block_id block, const block_release& release) noexcept {
    sketch_.record(release.hash);
    const auto tracked = lists_.tracked(block);
    const auto stays = tracked && lists_.list_of(block) != window;
    lists_.insert(block, release.parent, stays ? protected_ : window);
    if (!tracked || lists_.note(block) != hashed) {
      hashes_[to_index(block)] = release.hash;
      lists_.set_note(block, release.hash != 0 ? hashed : 0);
    }
    demote(protected_, protected_limit_);
    if (!full_) {
      demote(window, window_limit_);
    }
  }

  void remove(block_id block) noexcept { lists_.hold(block); }
  void erase(block_id block) noexcept { lists_.erase(block); }

  void rename(block_id from, block_id to) noexcept {
    lists_.rename(from, to);
    hashes_[to_index(to)] = hashes_[to_index(from)];
  }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp) noexcept {
    full_ = true;
    auto block = lists_.take_due(offer);
    while (block == no_block && lists_.size(window) >= window_limit_) {
      const auto candidate = lists_.oldest_evictable(window);
      const auto rival = lists_.oldest_evictable(probation);
      if (candidate == no_block || rival == no_block) {
        break;
      }
      const auto admitted = frequency(candidate) > frequency(rival);
      const auto loser = admitted ? rival : candidate;
      if (admitted) {
        lists_.move_newest(candidate, probation);
      }
      if (lists_.take(loser, offer)) {
        block = loser;
      }
    }
    for (const auto list : {probation, window, protected_}) {
      block = block == no_block ? lists_.take_oldest(list, offer) : block;
    }
    return block != no_block ? block : lists_.take_any(offer);
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return lists_.bytes() + sketch_.bytes() + hashes_.capacity() * sizeof(std::uint64_t);
  }

 private:
  static constexpr auto window = chain_lists::list_index{0};
  static constexpr auto probation = chain_lists::list_index{1};
  static constexpr auto protected_ = chain_lists::list_index{2};

  // The note of a tracked block whose hash is known: a hit does not write it again. A victim that an allocation gave
  // back comes without its hash.
  static constexpr auto hashed = std::uint16_t{1};

  [[nodiscard]] std::uint32_t frequency(block_id block) const noexcept {
    return sketch_.estimate(hashes_[to_index(block)]);
  }

  void demote(chain_lists::list_index list, std::int32_t limit) noexcept {
    while (lists_.size(list) > limit && lists_.oldest(list) != no_block) {
      lists_.move_newest(lists_.oldest(list), probation);
    }
  }

  std::int32_t window_limit_;
  std::int32_t protected_limit_;
  chain_lists lists_;
  detail::frequency_sketch sketch_;
  std::vector<std::uint64_t> hashes_;
  bool full_ = false;  // until the first victim nothing has to be admitted
};

static_assert(eviction_policy<tiny_lfu>);

}  // namespace pagedkv
