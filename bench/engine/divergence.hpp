#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace llama::bench {

/// How far logits are from exact ones.
struct divergence {
  double largest = 0;           // difference of a logit, in shares of the largest exact one
  double relative_entropy = 0;  // of the next token, in the mean over all tokens, in nats
  double same_best = 0;         // share of tokens behind which the same next token is the most likely one
};

/// The logarithm of the sum of the exponentials.
[[nodiscard]] inline double log_of_sum(std::span<const float> logits) {
  const auto most = static_cast<double>(*std::ranges::max_element(logits));
  auto sum = 0.0;
  for (const auto each : logits) {
    sum += std::exp(static_cast<double>(each) - most);
  }
  return most + std::log(sum);
}

/// Both are `[token][vocabulary]`, not empty and of one size.
[[nodiscard]] inline divergence compare(std::span<const float> exact, std::span<const float> other,
                                        std::size_t vocabulary) {
  auto made = divergence{};
  auto most = 0.0;
  auto num_same = 0;
  for (auto first = std::size_t{0}; first < exact.size(); first += vocabulary) {
    const auto here = exact.subspan(first, vocabulary);
    const auto there = other.subspan(first, vocabulary);
    const auto log_here = log_of_sum(here);
    const auto log_there = log_of_sum(there);
    for (auto i = std::size_t{0}; i < vocabulary; ++i) {
      const auto a = static_cast<double>(here[i]);
      const auto b = static_cast<double>(there[i]);
      most = std::max(most, std::abs(a));
      made.largest = std::max(made.largest, std::abs(a - b));
      made.relative_entropy += std::exp(a - log_here) * ((a - log_here) - (b - log_there));
    }
    const auto best = [](std::span<const float> of) { return std::ranges::max_element(of) - of.begin(); };
    num_same += best(here) == best(there) ? 1 : 0;
  }
  const auto num_tokens = static_cast<double>(exact.size() / vocabulary);
  made.largest /= most;
  made.relative_entropy /= num_tokens;
  made.same_best = num_same / num_tokens;
  return made;
}

}  // namespace llama::bench
