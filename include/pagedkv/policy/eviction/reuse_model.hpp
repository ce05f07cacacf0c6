#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace pagedkv {

/// Ages on a scale of four steps to an octave, so that the same bins serve small caches and large ones.
struct age_bins {
  static constexpr auto count = std::size_t{80};

  [[nodiscard]] static constexpr std::size_t of(std::uint32_t age) noexcept {
    if (age < 8) {
      return 0;
    }
    const auto octave = static_cast<std::size_t>(std::bit_width(age)) - 1;
    return std::min((octave - 3) * 4 + (age >> (octave - 2) & 3) + 1, count - 1);
  }

  [[nodiscard]] static constexpr std::uint32_t start(std::size_t bin) noexcept {
    return bin == 0 ? 0 : static_cast<std::uint32_t>(4 + (bin - 1) % 4) << ((bin - 1) / 4 + 1);
  }
};

/// Learns, for classes of blocks, how likely a block of a given age is to be used again soon: at each age, how many
/// reached it unused and how many of those were used before the next. Sparse classes lean on their group (those of
/// equal index modulo `NumGroups`), groups on all, and all on a prior under which old blocks are worth less: with no
/// evidence at all the order is that of LRU.
///
/// Density is the chance of a use per unit of time that the block is kept, for the length of keeping at which that is
/// best (the index of Gittins; after the hit density of Beckmann et al., NSDI 2018, which takes the lifetimes under
/// the policy in force instead). Old evidence fades by a fixed factor at each call of `fade`.
template <std::size_t NumClasses, std::size_t NumGroups>
class reuse_model {
 public:
  reuse_model() : classes_(NumClasses), groups_(NumGroups), densities_(NumClasses) {
    for (auto c = std::size_t{0}; c < NumClasses; ++c) {
      refresh(c);
    }
  }

  /// That many blocks of the class reached the bin unused. Every observed block reaches bin 0.
  void record_reached(std::size_t c, std::size_t bin, float num_blocks) noexcept {
    classes_[c].reached[bin] += num_blocks;
  }

  /// A block of the class was used again.
  void record_use(std::size_t c, std::uint32_t age) noexcept { classes_[c].used[age_bins::of(age)] += 1.0F; }

  [[nodiscard]] float density(std::size_t c, std::uint32_t age) const noexcept {
    return densities_[c][age_bins::of(age)];
  }

  void fade() noexcept {
    for (auto& level : classes_) {
      std::ranges::for_each(level.reached, [](float& value) { value *= kept_by_fading; });
      std::ranges::for_each(level.used, [](float& value) { value *= kept_by_fading; });
    }
  }

  /// Computes the densities of a class anew: about a microsecond.
  void refresh(std::size_t c) noexcept {
    // The parts of the curve of expected uses over expected time kept; each slope of its concave hull is the density
    // at the age where that part starts.
    groups_[c % NumGroups] = sum(classes_, c % NumGroups, NumGroups);
    auto hull = std::array<part, age_bins::count>{};
    auto parts = curve(c);
    auto size = std::size_t{0};
    for (auto bin = age_bins::count; bin-- > 0;) {
      auto joined = parts[bin];
      for (; size > 0 && hull[size - 1].uses * joined.time > joined.uses * hull[size - 1].time; --size) {
        joined.uses += hull[size - 1].uses;
        joined.time += hull[size - 1].time;
      }
      hull[size++] = joined;
      densities_[c][bin] = joined.uses / joined.time;
    }
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return (classes_.capacity() + groups_.capacity()) * sizeof(counts) + densities_.capacity() * sizeof(densities_[0]);
  }

 private:
  struct counts {
    std::array<float, age_bins::count> reached{};
    std::array<float, age_bins::count> used{};
  };

  struct part {
    float uses = 0.0F;
    float time = 0.0F;
  };

  // How many observations a less specific estimate weighs against the more specific one.
  static constexpr auto weight_of_group = 20.0F;
  static constexpr auto weight_of_all = 60.0F;
  static constexpr auto weight_of_prior = 100.0F;
  static constexpr auto prior_chance = 0.02F;  // of a use before the next bin: the same in each, so it falls with age
  static constexpr auto kept_by_fading = 0.7F;

  [[nodiscard]] static float blend(const counts& evidence, std::size_t bin, float chance, float weight) noexcept {
    return (evidence.used[bin] + weight * chance) / (evidence.reached[bin] + weight);
  }

  /// Sums up classes first, first + step, ...
  [[nodiscard]] static counts sum(const std::vector<counts>& of, std::size_t first, std::size_t step) noexcept {
    auto total = counts{};
    for (auto i = first; i < of.size(); i += step) {
      std::ranges::transform(total.reached, of[i].reached, total.reached.begin(), std::plus{});
      std::ranges::transform(total.used, of[i].used, total.used.begin(), std::plus{});
    }
    return total;
  }

  [[nodiscard]] std::array<part, age_bins::count> curve(std::size_t c) const noexcept {
    auto parts = std::array<part, age_bins::count>{};
    const auto& group = groups_[c % NumGroups];
    const auto all = sum(groups_, 0, 1);
    auto unused = 1.0F;  // the share of blocks that reach this bin
    for (auto bin = std::size_t{0}; bin + 1 < age_bins::count; ++bin) {
      const auto by_all = blend(all, bin, prior_chance, weight_of_prior);
      const auto by_group = blend(group, bin, by_all, weight_of_all);
      const auto chance = std::min(blend(classes_[c], bin, by_group, weight_of_group), 1.0F);
      const auto width = static_cast<float>(age_bins::start(bin + 1) - age_bins::start(bin));
      parts[bin] = {unused * chance, unused * width * (1.0F - chance / 2) + std::numeric_limits<float>::min()};
      unused *= 1.0F - chance;
    }
    parts[age_bins::count - 1] = {0.0F, 1.0F};
    return parts;
  }

  std::vector<counts> classes_;
  std::vector<counts> groups_;
  std::vector<std::array<float, age_bins::count>> densities_;
};

}  // namespace pagedkv
