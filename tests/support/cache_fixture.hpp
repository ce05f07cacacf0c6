#pragma once

#include "printing.hpp"
#include "tokens.hpp"

#include <pagedkv/pagedkv.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>
#include <vector>

namespace pagedkv::test {

using tokens = std::vector<token>;

[[nodiscard]] inline cache_config small_cache(std::int32_t num_blocks, std::int32_t block_size = 4) {
  auto config = cache_config{};
  config.block_size = block_size;
  config.num_blocks = num_blocks;
  config.head_dim = 2;
  config.max_sequences = 64;
  config.hash_seed = 1;
  return config;
}

template <class Cache>
[[nodiscard]] std::vector<block_id> table_of(Cache& cache, sequence_id id) {
  auto blocks = std::vector<block_id>(static_cast<std::size_t>(cache.describe(id)->num_blocks));
  REQUIRE(cache.block_table(id, blocks));
  return blocks;
}

/// A sequence of these tokens, all committed.
template <class Cache>
[[nodiscard]] sequence_id create_committed(Cache& cache, const tokens& prompt, const sequence_options& options = {}) {
  const auto id = cache.create_sequence(prompt, options).value().id;
  REQUIRE(cache.commit(id, std::ssize(prompt)));
  return id;
}

/// How many of these tokens are cached, the last one included.
template <class Cache>
[[nodiscard]] std::int64_t num_cached(const Cache& cache, tokens of, salt tag = salt::none) {
  of.push_back(token{0});
  return cache.find_prefix(of, tag);
}

template <class Cache>
void check_sound(Cache& cache) {
  CHECK(cache.check_invariants() == std::vector<std::string>{});
}

/// Ends everything that is named, and checks that nothing stays in use.
template <class Cache>
void release_all(Cache& cache, const std::vector<sequence_id>& ids) {
  for (const auto id : ids) {
    CHECK(cache.release(id));
  }
  CHECK(cache.statistics().blocks.in_use == 0);
  CHECK(cache.statistics().num_sequences == 0);
  check_sound(cache);
}

}  // namespace pagedkv::test
