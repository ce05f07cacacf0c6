#pragma once

#include <pagedkv/policy/eviction/parts/age_bins.hpp>
#include <pagedkv/policy/eviction/parts/reuse_class.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace pagedkv {

/// Learns, for each class of blocks, how likely one of a given age is to be used again soon: at each age, how many
/// reached it unused and how many of those were used before the next. The classes are the leaves of a tree, which splits
/// by one feature after the other. Evidence counts at every node on the way to its leaf, and the estimate of a node leans
/// on that of its parent as far as its own evidence is thin. How far, is chosen for each feature by what would have
/// foretold best: a feature that tells nothing costs little. The root leans on a prior under which old blocks are worth less:
/// with no evidence at all the order is that of LRU.
///
/// Density is the chance of a use per unit of time that the block is kept, for the length of keeping at which that is
/// best (the index of Gittins; after the hit density of Beckmann et al., NSDI 2018, which takes the lifetimes under
/// the policy in force instead). It rises with age where blocks return after a pause, so the youngest may be worth the
/// least. Old evidence fades by a fixed factor at each call of `fade`.
class reuse_model {
 public:
  reuse_model() : nodes_(num_nodes), densities_(reuse_class::count) {
    chosen_.fill(0);
    pending_.reserve(max_pending);
    refresh(0);
    std::ranges::fill(densities_, densities_.front());
  }

  /// A block of the class reached the bin unused. Every observed block reaches bin 0.
  void record_reached(reuse_class::index c, std::size_t bin) noexcept {
    if (bin > 0 && ++num_reached_ % judge_interval == 0) {
      judge(c, bin - 1, false);
    }
    record({c, static_cast<std::uint8_t>(bin), false});
  }

  /// A block of the class was used again.
  void record_use(reuse_class::index c, std::uint32_t age) noexcept {
    judge(c, age_bins::of(age), true);
    record({c, static_cast<std::uint8_t>(age_bins::of(age)), true});
  }

  [[nodiscard]] float density(reuse_class::index c, std::uint32_t age) const noexcept {
    return densities_[c][age_bins::of(age)];
  }

  void fade() noexcept {
    for (auto& node : nodes_) {
      std::ranges::for_each(node.reached, [](float& value) { value *= kept_by_fading; });
      std::ranges::for_each(node.used, [](float& value) { value *= kept_by_fading; });
    }
    for (auto& losses : losses_) {
      std::ranges::for_each(losses, [](float& value) { value *= kept_by_fading; });
    }
  }

  /// Computes the densities of a class anew: about half a microsecond.
  void refresh(reuse_class::index c) noexcept {
    // The parts of the curve of expected uses over expected time kept; each slope of its concave hull is the density
    // at the age where that part starts.
    auto hull = std::array<part, age_bins::count>{};
    const auto parts = curve(chances(c));
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
    return nodes_.capacity() * sizeof(counts) + densities_.capacity() * sizeof(by_bin) +
           pending_.capacity() * sizeof(observation);
  }

 private:
  using by_bin = std::array<float, age_bins::count>;

  struct counts {
    by_bin reached{};
    by_bin used{};
  };

  struct part {
    float uses = 0.0F;
    float time = 0.0F;
  };

  struct observation {
    reuse_class::index block_class;
    std::uint8_t bin;
    bool used;
  };

  // How many observations the estimate of its parent may weigh against a node's own.
  static constexpr auto weights = std::array{4000.0F, 400.0F};
  static constexpr auto weight_of_prior = 400.0F;
  static constexpr auto judge_interval = 16U;
  static constexpr auto max_pending = std::size_t{2048};
  static constexpr auto prior_chance = 0.02F;  // of a use before the next bin: the same in each, so it falls with age
  static constexpr auto kept_by_fading = 0.7F;

  static constexpr auto num_nodes = [] {
    auto total = std::size_t{1};
    auto width = std::size_t{1};
    for (const auto levels : reuse_class::num_levels) {
      width *= levels;
      total += width;
    }
    return total;
  }();

  /// The nodes on the way from the root to the class, in this order.
  template <class Visit>
  static void for_each_node(reuse_class::index c, Visit visit) noexcept {
    auto first = std::size_t{0};  // of those at this depth of the tree
    auto width = std::size_t{1};
    visit(first);
    for (const auto levels : reuse_class::num_levels) {
      first += width;
      width *= levels;
      visit(first + c % width);
    }
  }

  [[nodiscard]] static float blend(const counts& evidence, std::size_t bin, float chance, float weight) noexcept {
    return (evidence.used[bin] + weight * chance) / (evidence.reached[bin] + weight);
  }

  /// Blocks of a chain are much alike and come together. Therefore observations wait until they have become history.
  void record(const observation& seen) noexcept {
    pending_.push_back(seen);
    if (pending_.size() < max_pending) {
      return;
    }
    for (const auto& [c, bin, used] : pending_) {
      for_each_node(c, [&, bin = bin, used = used](std::size_t node) {
        (used ? nodes_[node].used : nodes_[node].reached)[bin] += 1.0F;
      });
    }
    pending_.clear();
    for (auto depth = std::size_t{0}; depth < losses_.size(); ++depth) {
      const auto least = std::ranges::min_element(losses_[depth]);
      chosen_[depth] = static_cast<std::uint8_t>(least - losses_[depth].begin());
    }
  }

  /// Adds up what each weight would have cost in foretelling an observation: its negative logarithm, in two terms where
  /// the chance is small.
  void judge(reuse_class::index c, std::size_t bin, bool used) noexcept {
    auto chance = prior_chance;
    auto depth = std::size_t{0};
    for_each_node(c, [&](std::size_t node) {
      if (node == 0) {
        chance = blend(nodes_[node], bin, chance, weight_of_prior);
        return;
      }
      auto by_weight = std::array<float, weights.size()>{};
      for (auto i = std::size_t{0}; i < weights.size(); ++i) {
        by_weight[i] = std::min(blend(nodes_[node], bin, chance, weights[i]), 0.999F);
        losses_[depth][i] -= used ? std::log(by_weight[i]) : judge_interval * -by_weight[i] * (1.0F + by_weight[i] / 2);
      }
      chance = by_weight[chosen_[depth++]];
    });
  }

  /// By bin: the chance of a use before the next.
  [[nodiscard]] by_bin chances(reuse_class::index c) const noexcept {
    auto chance = by_bin{};
    chance.fill(prior_chance);
    auto depth = std::size_t{0};
    for_each_node(c, [&](std::size_t node) {
      const auto weight = node == 0 ? weight_of_prior : weights[chosen_[depth++]];
      for (auto bin = std::size_t{0}; bin < age_bins::count; ++bin) {
        chance[bin] = blend(nodes_[node], bin, chance[bin], weight);
      }
    });
    return chance;
  }

  [[nodiscard]] static std::array<part, age_bins::count> curve(const by_bin& chances) noexcept {
    auto parts = std::array<part, age_bins::count>{};
    auto unused = 1.0F;  // the share of blocks that reach this bin
    for (auto bin = std::size_t{0}; bin + 1 < age_bins::count; ++bin) {
      const auto chance = std::min(chances[bin], 1.0F);
      const auto width = static_cast<float>(age_bins::start(bin + 1) - age_bins::start(bin));
      parts[bin] = {unused * chance, unused * width * (1.0F - chance / 2) + std::numeric_limits<float>::min()};
      unused *= 1.0F - chance;
    }
    parts[age_bins::count - 1] = {0.0F, 1.0F};
    return parts;
  }

  std::vector<counts> nodes_;  // by depth in the tree
  std::vector<by_bin> densities_;
  std::vector<observation> pending_;
  std::array<std::array<float, weights.size()>, reuse_class::num_levels.size()> losses_{};  // by feature
  std::array<std::uint8_t, reuse_class::num_levels.size()> chosen_{};                       // of the weights
  std::uint32_t num_reached_ = 0;
};

}  // namespace pagedkv
