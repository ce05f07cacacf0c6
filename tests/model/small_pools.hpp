#pragma once

#include <pagedkv/core/config.hpp>

#include <cstdint>
#include <random>

namespace pagedkv::test {

/// Of caches with one group: pools so small that exhaustion and eviction are frequent.
[[nodiscard]] inline cache_config draw_config(std::uint64_t seed, std::int32_t block_size) {
  auto random = std::mt19937_64{seed};
  const auto between = [&](int low, int high) { return std::uniform_int_distribution{low, high}(random); };
  auto config = cache_config{};
  config.block_size = block_size;
  config.num_blocks = between(1, block_size == 16 ? 12 : 30);
  config.max_blocks = config.num_blocks + between(0, config.num_blocks);
  config.num_layers = between(1, 2);
  config.num_kv_heads = between(1, 2);
  config.head_dim = between(1, 5);
  config.max_sequences = between(1, 7);
  config.hash_seed = seed + 1;
  return config;
}

}  // namespace pagedkv::test
