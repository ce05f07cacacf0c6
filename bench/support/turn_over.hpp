#pragma once

#include "best_of.hpp"

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/hash/all.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv::bench {

/// Prompts that share no block. Their numbers, below 100,000, distinguish them.
class new_prompts {
 public:
  explicit new_prompts(std::size_t num_tokens, std::int64_t first = 0) : tokens_(num_tokens), number_(first) {}

  [[nodiscard]] const std::vector<token>& next() {
    constexpr auto vocabulary = std::int64_t{151'643};
    ++number_;
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = static_cast<token>((static_cast<std::int64_t>(i) * 13 + number_ * 7'919'001) % vocabulary);
    }
    return tokens_;
  }

 private:
  std::vector<token> tokens_;
  std::int64_t number_;
};

/// Computes a prompt and releases it: all its full blocks are cached.
template <class Cache>
[[nodiscard]] bool cache_prompt(Cache& cache, const std::vector<token>& prompt) {
  const auto made = cache.create_sequence(prompt);
  return made && cache.commit(made->id, static_cast<std::int64_t>(prompt.size())) && cache.release(made->id);
}

/// Caches prompts of a hundred blocks until every block of the pool has been replaced `times` times.
template <class Cache>
void turn_over(benchmark::State& state, Cache& cache, std::int64_t times) {
  constexpr auto num_blocks = 100;
  auto prompts = new_prompts(static_cast<std::size_t>(num_blocks * cache.config().block_size));
  for (auto i = std::int64_t{0}; i * num_blocks < times * cache.config().num_blocks; ++i) {
    if (!cache_prompt(cache, prompts.next())) {
      state.SkipWithError("a prompt was refused");
      return;
    }
  }
}

/// The best time to hash all full blocks of a prompt.
[[nodiscard]] inline double hash_seconds(int repetitions, std::span<const token> tokens, std::size_t block_size) {
  return best_seconds(repetitions, [&] {
    auto last = std::uint64_t{0};
    for (auto i = std::size_t{0}; i + block_size <= tokens.size(); i += block_size) {
      last = xxh3_hash::hash(last, tokens.subspan(i, block_size));
    }
    benchmark::DoNotOptimize(last);
  });
}

}  // namespace pagedkv::bench
