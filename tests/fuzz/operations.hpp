#pragma once

#include "../support/small_config.hpp"
#include "target.hpp"

#include <pagedkv/core/config.hpp>
#include <pagedkv/core/ids.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace pagedkv::fuzz {

/// Few blocks and sequences, so that a cache is full soon.
inline cache_config small() {
  auto config = test::small_config(10);
  config.num_layers = 1;
  config.max_sequences = 6;
  return config;
}

/// Seeds of drivers.
inline std::vector<std::vector<std::uint8_t>> random_bytes() {
  auto random = std::mt19937{1};
  auto made = std::vector<std::vector<std::uint8_t>>(16);
  for (auto& each : made) {
    each.resize(200);
    std::ranges::generate(each, [&] { return static_cast<std::uint8_t>(random()); });
  }
  return made;
}

/// Few different ones, so that prompts share.
inline std::vector<token> tokens_of(reader& bytes, int most) {
  auto made = std::vector<token>(static_cast<std::size_t>(bytes.below(most + 1)));
  const auto first = bytes.below(3) * 100;
  for (auto i = std::size_t{0}; i < made.size(); ++i) {
    made[i] = static_cast<token>(first + static_cast<int>(i));
  }
  return made;
}

template <class Cache>
void check_invariants(const Cache& cache, const std::string& behind) {
  for (const auto& sentence : cache.check_invariants()) {
    require(false, sentence + ", behind operation " + behind);
  }
}

}  // namespace pagedkv::fuzz
