#pragma once

#include <pagedkv/policy/eviction/concept.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace pagedkv {

/// Ages on a scale of two steps to an octave, so that the same bins serve small caches and large ones.
struct age_bins {
  static constexpr auto count = std::size_t{40};

  [[nodiscard]] static constexpr std::size_t of(std::uint32_t age) noexcept {
    if (age < 8) {
      return 0;
    }
    const auto octave = static_cast<std::size_t>(std::bit_width(age)) - 1;
    return std::min((octave - 3) * 2 + (age >> (octave - 1) & 1) + 1, count - 1);
  }

  [[nodiscard]] static constexpr std::uint32_t start(std::size_t bin) noexcept {
    return bin == 0 ? 0 : static_cast<std::uint32_t>(2 + (bin - 1) % 2) << ((bin - 1) / 2 + 2);
  }

  /// How far an age lies between the start of its bin and that of the next.
  [[nodiscard]] static constexpr float fraction(std::uint32_t age) noexcept {
    const auto width = age < 8 ? 8U : std::bit_floor(age) / 2;
    return static_cast<float>(age & (width - 1)) / static_cast<float>(width);
  }
};

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

/// Learns, for each class of blocks, how likely one of a given age is to be used again soon: at each age, how many
/// reached it unused and how many of those were used before the next. Evidence counts at the nodes of a small graph:
/// all blocks, those with as many hits, those with as many hits and one more feature in common, and the class itself.
/// An estimate leans on the coarser one as far as its own evidence is thin: the number of hits on all blocks, each
/// further feature on the number of hits, and the class on the product of the factors of its features. The model
/// adjusts how far an estimate leans, and how strongly each feature counts in the product, to the values that would
/// have foretold best. A feature that tells nothing therefore costs little. All blocks together lean on a prior under
/// which old blocks are worth less: with no evidence at all the order is that of LRU.
///
/// Density is the chance of a use per unit of time that the block is kept, for the length of keeping at which that is
/// best (the index of Gittins; after the hit density of Beckmann et al., NSDI 2018, which takes the lifetimes under
/// the policy in force instead). It rises with age where blocks return after a pause, so the youngest may be worth the
/// least. Old evidence fades by a fixed factor at each call of `fade`.
class reuse_model {
 public:
  reuse_model() : nodes_(num_nodes), densities_(reuse_class::count) {
    strengths_.fill(1.0F);
    pending_.reserve(max_pending);
    estimate();
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
    const auto bin = age_bins::of(age);
    const auto next = std::min(bin + 1, age_bins::count - 1);
    return std::lerp(densities_[c][bin], densities_[c][next], age_bins::fraction(age));
  }

  void fade() noexcept {
    for (auto& node : nodes_) {
      std::ranges::for_each(node.reached, [](float& value) { value *= kept_by_fading; });
      std::ranges::for_each(node.used, [](float& value) { value *= kept_by_fading; });
    }
    std::ranges::for_each(leanings_, &leaning::fade);
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
  static constexpr auto step_of_strength = 0.001F;
  static constexpr auto most_strength = 1.2F;
  static constexpr auto least_factor = 0.02F;
  static constexpr auto most_likely = 0.9F;

  [[nodiscard]] static float blend(const counts& evidence, std::size_t bin, float chance, float weight) noexcept {
    return (evidence.used[bin] + weight * chance) / (evidence.reached[bin] + weight);
  }

  /// How much nodes of one kind lean on the coarser ones: by the weight that would have cost least so far.
  class leaning {
   public:
    [[nodiscard]] float weight() const noexcept { return weights[chosen_]; }

    /// Adds the cost of each weight in foretelling an observation: its negative logarithm, in two terms where the
    /// chance is small.
    void judge(const counts& evidence, std::size_t bin, float coarser, bool used) noexcept {
      for (auto i = std::size_t{0}; i < weights.size(); ++i) {
        const auto chance = std::min(blend(evidence, bin, coarser, weights[i]), 0.999F);
        losses_[i] -= used ? std::log(chance) : judge_interval * -chance * (1.0F + chance / 2);
      }
    }

    void choose() noexcept {
      chosen_ = static_cast<std::size_t>(std::ranges::min_element(losses_) - losses_.begin());
    }

    void fade() noexcept {
      std::ranges::for_each(losses_, [](float& value) { value *= kept_by_fading; });
    }

   private:
    std::array<float, weights.size()> losses_{};
    std::size_t chosen_ = 0;
  };

  static constexpr auto num_hit_levels = std::size_t{reuse_class::num_levels.front()};
  static constexpr auto num_features = reuse_class::num_levels.size() - 1;  // besides the number of hits

  /// Where the nodes of each of these features start, and those of the classes.
  static constexpr auto first_nodes = [] {
    auto first = std::array<std::size_t, num_features + 1>{1 + num_hit_levels};
    for (auto f = std::size_t{0}; f < num_features; ++f) {
      first[f + 1] = first[f] + num_hit_levels * reuse_class::num_levels[f + 1];
    }
    return first;
  }();
  static constexpr auto num_nodes = first_nodes.back() + reuse_class::count;

  /// The nodes at which evidence of a class counts.
  struct place {
    std::uint16_t hits;
    std::array<std::uint16_t, num_features> features;
    std::uint16_t own;
  };

  static constexpr auto places = [] {
    auto found = std::array<place, reuse_class::count>{};
    for (auto c = std::size_t{0}; c < found.size(); ++c) {
      const auto hits = c % num_hit_levels;
      found[c].hits = static_cast<std::uint16_t>(1 + hits);
      found[c].own = static_cast<std::uint16_t>(first_nodes.back() + c);
      auto rest = c / num_hit_levels;
      for (auto f = std::size_t{0}; f < num_features; ++f) {
        const auto levels = std::size_t{reuse_class::num_levels[f + 1]};
        found[c].features[f] = static_cast<std::uint16_t>(first_nodes[f] + hits * levels + rest % levels);
        rest /= levels;
      }
    }
    return found;
  }();

  /// Blocks of a chain are much alike and come together. Therefore observations wait until they have become history.
  void record(const observation& seen) noexcept {
    pending_.push_back(seen);
    if (pending_.size() < max_pending) {
      return;
    }
    for (const auto& each : pending_) {
      count(each);
    }
    pending_.clear();
    for (auto& each : leanings_) {
      each.choose();
    }
    estimate();
  }

  void count(const observation& seen) noexcept {
    const auto add_to = [&](std::size_t node) {
      (seen.used ? nodes_[node].used : nodes_[node].reached)[seen.bin] += 1.0F;
    };
    const auto& at = places[seen.block_class];
    add_to(0);
    add_to(at.hits);
    std::ranges::for_each(at.features, add_to);
    add_to(at.own);
  }

  /// Computes the estimates of all nodes but those of the classes.
  void estimate() noexcept {
    for (auto bin = std::size_t{0}; bin < age_bins::count; ++bin) {
      root_[bin] = blend(nodes_[0], bin, prior_chance, weight_of_prior);
      for (auto hits = std::size_t{0}; hits < num_hit_levels; ++hits) {
        by_hits_[hits][bin] = blend(nodes_[1 + hits], bin, root_[bin], of_hits().weight());
      }
    }
    for (auto f = std::size_t{0}; f < num_features; ++f) {
      const auto levels = std::size_t{reuse_class::num_levels[f + 1]};
      for (auto node = first_nodes[f]; node < first_nodes[f + 1]; ++node) {
        estimate_effect(node, by_hits_[(node - first_nodes[f]) / levels], leanings_[f].weight());
      }
    }
  }

  void estimate_effect(std::size_t node, const by_bin& coarser, float weight) noexcept {
    for (auto bin = std::size_t{0}; bin < age_bins::count; ++bin) {
      effects_[node - first_nodes[0]][bin] = blend(nodes_[node], bin, coarser[bin], weight) / coarser[bin] - 1.0F;
    }
  }

  [[nodiscard]] leaning& of_hits() noexcept { return leanings_[num_features]; }
  [[nodiscard]] leaning& of_classes() noexcept { return leanings_[num_features + 1]; }

  [[nodiscard]] const by_bin& effect(std::size_t node) const noexcept { return effects_[node - first_nodes[0]]; }

  [[nodiscard]] float factor(std::size_t feature, float change) const noexcept {
    return std::max(1.0F + strengths_[feature] * change, least_factor);
  }

  /// By the number of hits and the other features, without the class's own evidence.
  [[nodiscard]] float product_of_features(const place& at, std::size_t bin) const noexcept {
    auto product = by_hits_[at.hits - 1U][bin];
    for (auto f = std::size_t{0}; f < num_features; ++f) {
      product *= factor(f, effect(at.features[f])[bin]);
    }
    return std::min(product, most_likely);
  }

  /// Compares the forecast under each weight, and under each strength, with an observation.
  void judge(reuse_class::index c, std::size_t bin, bool used) noexcept {
    const auto& at = places[c];
    const auto chance_of_hits = by_hits_[at.hits - 1U][bin];
    const auto product = product_of_features(at, bin);
    of_hits().judge(nodes_[at.hits], bin, root_[bin], used);
    of_classes().judge(nodes_[at.own], bin, product, used);
    const auto error = used ? 1.0F - product : -static_cast<float>(judge_interval) * product;
    for (auto f = std::size_t{0}; f < num_features; ++f) {
      leanings_[f].judge(nodes_[at.features[f]], bin, chance_of_hits, used);
      const auto change = effect(at.features[f])[bin];
      const auto slope = std::clamp(error * change / factor(f, change), -1.0F, 1.0F);
      strengths_[f] = std::clamp(strengths_[f] + step_of_strength * slope, 0.0F, most_strength);
    }
  }

  /// By bin: the chance of a use before the next.
  [[nodiscard]] by_bin chances(reuse_class::index c) noexcept {
    const auto& at = places[c];
    auto chance = by_bin{};
    for (auto bin = std::size_t{0}; bin < age_bins::count; ++bin) {
      chance[bin] = blend(nodes_[at.own], bin, product_of_features(at, bin), of_classes().weight());
    }
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

  std::vector<counts> nodes_;  // of all blocks, by hits, by hits and each other feature, by class
  std::vector<by_bin> densities_;
  std::vector<observation> pending_;
  by_bin root_{};
  std::array<by_bin, num_hit_levels> by_hits_{};
  std::array<by_bin, first_nodes.back() - first_nodes.front()> effects_{};  // factors, less 1
  std::array<float, num_features> strengths_{};
  std::array<leaning, num_features + 2> leanings_{};  // of each other feature, the number of hits, the classes
  std::uint32_t num_reached_ = 0;
};

}  // namespace pagedkv
