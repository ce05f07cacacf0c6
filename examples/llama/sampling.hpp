#pragma once

#include <pagedkv/core/ids.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace llama {

using random_numbers = std::mt19937_64;

struct sampling_options {
  float temperature = 0;  // 0: the most likely token
  std::uint64_t seed = 0;
};

/// Draws the next token; the same random numbers give the same tokens on every machine.
[[nodiscard]] inline pagedkv::token choose(std::span<const float> logits, const sampling_options& options,
                                           random_numbers& random) {
  const auto best = std::ranges::max_element(logits);
  if (options.temperature <= 0) {
    return static_cast<pagedkv::token>(best - logits.begin());
  }
  auto sums = std::vector<double>{};
  auto sum = 0.0;
  for (const auto logit : logits) {
    sum += std::exp(static_cast<double>((logit - *best) / options.temperature));
    sums.push_back(sum);
  }
  const auto drawn = static_cast<double>(random() >> 11) * 0x1p-53 * sum;
  const auto found = std::ranges::upper_bound(sums, drawn);
  return static_cast<pagedkv::token>(std::min(found - sums.begin(), static_cast<std::ptrdiff_t>(sums.size()) - 1));
}

}  // namespace llama
