#pragma once

#include <pagedkv/policy/eviction/concept.hpp>

#include <algorithm>
#include <array>
#include <cstdint>

namespace pagedkv {

/// Sorts released blocks by features that tell whether and when they return: a class for each combination of levels of
/// the features.
struct reuse_class {
  using index = std::uint16_t;

  /// Time between the last two requests of a session.
  enum class pace : std::uint8_t { first_request, fast, slow };

  /// Levels by feature. The first stays the lowest digit of a class; the order of the others means nothing.
  static constexpr auto num_levels = std::array<index, 7>{5, 2, 4, 2, 3, 4, 2};

  static constexpr auto count = [] {
    auto product = index{1};
    for (const auto levels : num_levels) {
      product = static_cast<index>(product * levels);
    }
    return product;
  }();

  /// Levels of hits so far: 0, 1, 2, 3 to 6, more.
  [[nodiscard]] static constexpr index of_hits(std::uint32_t num_hits) noexcept {
    return static_cast<index>(num_hits < 3 ? num_hits : num_hits < 7 ? 3 : 4);
  }

  [[nodiscard]] static constexpr index of(std::uint32_t num_hits, pace session_pace,
                                          const block_release& release) noexcept {
    const auto levels = std::array<index, num_levels.size()>{
        of_hits(num_hits),  ends_chain(release),  of_answer(release), lies_deep(release),
        static_cast<index>(session_pace), of_hint(release), was_found(release)};
    auto combined = index{0};
    for (auto i = levels.size(); i-- > 0;) {
      combined = static_cast<index>(combined * num_levels[i] + levels[i]);
    }
    return combined;
  }

 private:
  [[nodiscard]] static constexpr index ends_chain(const block_release& release) noexcept {
    return release.depth + 1 == release.num_chain_blocks ? 1 : 0;
  }

  /// Below 64, 256 and 512 tokens, and beyond: calls of tools, replies, essays.
  [[nodiscard]] static constexpr index of_answer(const block_release& release) noexcept {
    const auto length = release.num_output_tokens;
    return static_cast<index>((length >= 64) + (length >= 256) + (length >= 512));
  }

  /// Behind the first 4,096 tokens. Tokens, so that the size of a block does not matter.
  [[nodiscard]] static constexpr index lies_deep(const block_release& release) noexcept {
    constexpr auto deep = std::uint64_t{4096};
    const auto num_tokens = std::uint64_t{release.num_prompt_tokens} + release.num_output_tokens;
    return num_tokens * release.depth / std::max(release.num_chain_blocks, release.depth + 1) >= deep ? 1 : 0;
  }

  /// Whether the request that releases the block found it cached, as a part of the chain that it continued. Contents
  /// that were hit before may have been evicted since, and computed anew.
  [[nodiscard]] static constexpr index was_found(const block_release& release) noexcept {
    return release.depth < release.num_cached_blocks ? 1 : 0;
  }

  /// Nothing said, ended, or expected back within 15 seconds or later.
  [[nodiscard]] static constexpr index of_hint(const block_release& release) noexcept {
    constexpr auto soon = std::int64_t{15'000'000'000};
    if (release.ended) {
      return 1;
    }
    return static_cast<index>(release.expected_return == 0 ? 0 : release.expected_return < soon ? 2 : 3);
  }
};

}  // namespace pagedkv
