#pragma once

#include <pagedkv/core/config.hpp>

#include <cstdint>

namespace pagedkv::test {

/// Several layers and heads in few bytes. Caches of two processes have two seeds.
[[nodiscard]] inline cache_config small_config(std::int32_t num_blocks = 32, std::uint64_t hash_seed = 1) {
  auto config = cache_config{};
  config.num_blocks = num_blocks;
  config.block_size = 4;
  config.num_layers = 3;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.hash_seed = hash_seed;
  return config;
}

}  // namespace pagedkv::test
