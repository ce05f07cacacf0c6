#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv {

/// Observes whether blocks of sessions that are said to have ended return less often than others: a sample of the
/// released contents, each followed until it is released again or another takes its place. 1 to 2 bytes per block, 16
/// KB at least.
class observed_ends {
 public:
  explicit observed_ends(std::int32_t num_blocks)
      : notes_(std::bit_ceil(std::max(min_notes, static_cast<std::size_t>(num_blocks) / sampled_one_in))) {}

  /// Contents are released. `added`: by the request that computed them, so that their return is that of its session.
  void note(std::uint64_t hash, bool added, bool ended) noexcept {
    const auto mixed = hash * 0x9e3779b97f4a7c15U;
    if (mixed >> 32 & (sampled_one_in - 1)) {
      return;
    }
    auto& note = notes_[mixed >> 36 & (notes_.size() - 1)];
    const auto mark = static_cast<std::uint32_t>(mixed) | 1U;
    const auto returns = (note | 1U) == mark;
    if (!returns && !added) {
      return;
    }
    if (note != 0) {
      count((note & 1U) == 0, returns);
    }
    note = !added ? 0 : ended ? mark & ~1U : mark;
  }

  /// Whether such blocks return at most half as often as others; true while hardly any has returned.
  [[nodiscard]] bool are_true() const noexcept {
    const auto& [others, ends] = counted_;
    return ends.returned < 16 || 2 * ends.returned * others.followed <= others.returned * ends.followed;
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return notes_.capacity() * sizeof(notes_[0]); }

 private:
  static constexpr auto min_notes = std::size_t{4096};
  static constexpr auto sampled_one_in = std::size_t{4};
  static constexpr auto most_followed = std::uint64_t{8192};

  struct counts {
    std::uint64_t followed = 0;
    std::uint64_t returned = 0;
  };

  void count(bool ended, bool returned) noexcept {
    auto& [followed, num_returned] = counted_[ended ? 1 : 0];
    ++followed;
    num_returned += returned ? 1 : 0;
    if (followed > most_followed) {
      std::ranges::for_each(counted_, [](counts& each) { each = {each.followed / 2, each.returned / 2}; });
    }
  }

  std::vector<std::uint32_t> notes_;  // a hash whose lowest bit is 0 where the session was said to have ended; 0: none
  std::array<counts, 2> counted_{};   // of other sessions, and of those
};

}  // namespace pagedkv
