#pragma once

#include <pagedkv/core/config.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/sequence/sequence.hpp>

#include <array>
#include <cstdint>

namespace pagedkv::testing {

/// Blocks of two tokens, with one number of K and of V for each.
[[nodiscard]] inline cache_config pairs_of_tokens(std::int32_t num_blocks) {
  auto config = cache_config{};
  config.head_dim = 1;
  config.block_size = 2;
  config.num_blocks = num_blocks;
  config.max_sequences = 16;
  config.hash_seed = 1;
  return config;
}

/// Leaves a block in the prefix index that no sequence holds.
template <class Cache>
void cache_prompt(Cache& cache, token first, token second, std::uint8_t priority = 0) {
  auto options = sequence_options{};
  options.priority = priority;
  const auto id = cache.create_sequence(std::array{first, second}, options).value().id;
  cache.commit(id, 2).value();  // threads call this, and Catch2's assertions are for one
  cache.release(id).value();
}

}  // namespace pagedkv::testing
