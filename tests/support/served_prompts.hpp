#pragma once

#include <pagedkv/pagedkv.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace pagedkv::test {

/// Computes a prompt and ends; returns the number of tokens that were cached.
template <class Cache>
std::int64_t serve(Cache& cache, const std::vector<token>& prompt, const sequence_options& options = {}) {
  const auto made = cache.create_sequence(prompt, options).value();
  REQUIRE(cache.commit(made.id, std::ssize(prompt)));
  REQUIRE(cache.release(made.id));
  return made.num_cached_tokens;
}

/// Conversations that go on by some runs of so many tokens, in a pool that keeps a part of them.
template <class Cache>
[[nodiscard]] cache_statistics serve_conversations(Cache& cache, std::uint32_t seed, std::size_t run_size) {
  auto random = std::mt19937{seed};
  auto talks = std::vector<std::vector<token>>(60);
  auto next = token{1};
  for (auto turn = 0; turn < 4000; ++turn) {
    auto& talk = talks[random() % talks.size()];
    if (talk.size() > 100 * run_size || random() % 8 == 0) {
      talk.clear();
    }
    for (auto length = (6 + random() % 24) * run_size; length > 0; --length) {
      talk.push_back(next++);
    }
    serve(cache, talk);
    if (turn % 500 == 0) {
      REQUIRE(cache.check_invariants() == std::vector<std::string>{});
    }
  }
  return cache.statistics();
}

[[nodiscard]] inline double share(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

/// Of the same conversations, with runs and without: far more blocks lie in runs, and few hits are lost.
inline void check_runs(const cache_statistics& with, const cache_statistics& without) {
  const auto in_runs_without = share(without.blocks_in_runs, without.blocks_together);
  const auto in_runs_with = share(with.blocks_in_runs, with.blocks_together);
  CAPTURE(in_runs_without, in_runs_with);
  CHECK(in_runs_with > 0.6);
  CHECK(in_runs_with > 2 * in_runs_without);
  const auto hits_without = share(without.hit_blocks, without.prompt_blocks);
  const auto hits_with = share(with.hit_blocks, with.prompt_blocks);
  CAPTURE(hits_without, hits_with);
  CHECK(hits_with > hits_without - 0.05);
}

}  // namespace pagedkv::test
