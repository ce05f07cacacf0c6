#pragma once

#include "../support/small_config.hpp"
#include "../support/tokens.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

// Sequences whose K/V follows from their tokens.

namespace pagedkv::testing {

inline constexpr auto block_size = std::int64_t{4};

using test::small_config;
using test::text;

struct cache_with_tier : tiered_cache<> {
  explicit cache_with_tier(const cache_config& config) : tiered_cache<>{config, {}, {16}} {}
};

/// Rows of one layer whose numbers follow from the tokens.
inline std::vector<float> rows_of(const std::vector<token>& tokens, std::int32_t layer, float sign) {
  auto rows = std::vector<float>{};
  for (const auto one : tokens) {
    for (int i = 0; i < 16; ++i) {
      rows.push_back(sign * static_cast<float>(static_cast<int>(one) % 50 + 100 * layer + i));
    }
  }
  return rows;
}

/// Writes K/V of all tokens that are held, from `first` on.
template <class Cache>
void write_rows(Cache& cache, sequence_id id, const std::vector<token>& tokens, std::int64_t first = 0) {
  auto slots = std::vector<slot>(tokens.size() - static_cast<std::size_t>(first));
  REQUIRE(cache.slot_mapping(id, first, slots));
  const auto some = std::vector<token>(tokens.begin() + first, tokens.end());
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    const auto keys = rows_of(some, layer, 1);
    const auto values = rows_of(some, layer, -1);
    REQUIRE(cache.write(layer, slots, contiguous_rows(keys, 2, 8), contiguous_rows(values, 2, 8)));
  }
}

/// Whether the first `size` tokens from `first` on have the rows that `write_rows` writes; to the precision of int8.
template <class Cache>
bool has_rows(Cache& cache, sequence_id id, const std::vector<token>& tokens, std::int64_t first, std::size_t size) {
  const auto begin = tokens.begin() + first;
  const auto some = std::vector<token>(begin, begin + static_cast<std::int64_t>(size));
  auto slots = std::vector<slot>(size);
  auto keys = std::vector<float>(size * 16);
  auto values = keys;
  auto equal = cache.slot_mapping(id, first, slots).has_value();
  const auto near = [](float a, float b) { return a - b < 2.0F && b - a < 2.0F; };
  for (std::int32_t layer = 0; layer < 3 && equal; ++layer) {
    equal = cache.read(layer, slots, contiguous_rows(keys, 2, 8), contiguous_rows(values, 2, 8)).has_value() &&
            std::ranges::equal(keys, rows_of(some, layer, 1), near) &&
            std::ranges::equal(values, rows_of(some, layer, -1), near);
  }
  return equal;
}

template <class Cache>
sequence_id create_written(Cache& cache, const token_run& run, const sequence_options& options = {},
                           std::int64_t num_uncomputed = 0) {
  const auto id = cache.create_sequence(run, options).value().id;
  write_rows(cache, id, {run.tokens.begin(), run.tokens.end()});
  REQUIRE(cache.commit(id, std::ssize(run.tokens) - num_uncomputed));
  return id;
}

template <class Cache>
std::vector<token> tokens_of(const Cache& cache, sequence_id id) {
  auto tokens = std::vector<token>(static_cast<std::size_t>(cache.describe(id)->num_tokens));
  REQUIRE(cache.tokens(id, 0, tokens));
  return tokens;
}

}  // namespace pagedkv::testing
