#pragma once

#include <pagedkv/core/group_config.hpp>
#include <pagedkv/core/result.hpp>

#include <array>
#include <cstdint>
#include <limits>

namespace pagedkv {

/// The sizes of a cache. A plain value: `validate` says whether it can be built.
///
/// Without `groups`, all layers attend to all tokens and have K and V of one size. Groups replace the three sizes of
/// layers. Hits are then multiples of `block_size`, and `plan_memory` decides how many tokens a block of each group
/// holds.
///
/// `scales` are those of an element whose scales the engine gives: [layer][K, V], or with `head_scale` [layer][K, V][KV
/// head]. Positive numbers in the engine's memory, which operations read where they run: on a device, device memory.
/// They are not copied, and stay as they are as long as K/V that was written with them is read. Null: 1. With groups,
/// each has its own (`group_config::scales`).
struct cache_config {
  std::int32_t block_size = 16;       // tokens in a block
  std::int32_t num_blocks = 0;        // blocks in the pool, at first
  std::int32_t max_blocks = 0;        // blocks that the pool may grow to; 0 for `num_blocks`
  std::int32_t num_layers = 1;        // layers of the model
  std::int32_t num_kv_heads = 1;      // key/value heads in a layer
  std::int32_t head_dim = 64;         // numbers in one key or value of one head
  std::int32_t max_sequences = 4096;  // sequences alive at once
  std::uint64_t hash_seed = 0;        // of the prefix index; 0 draws one at random
  group_list groups = {};             // kinds of layers; empty: one of full attention
  const float* scales = nullptr;      // [layer][K, V], or [layer][K, V][KV head]: see above

  /// Blocks that there are addresses and metadata for.
  [[nodiscard]] constexpr std::int32_t capacity() const noexcept { return max_blocks == 0 ? num_blocks : max_blocks; }
};

/// Errors: those of the groups; `invalid_argument` names the first field that is not positive, `max_blocks` below
/// `num_blocks`, or `scales` beside groups; `size_overflow` when K and V of one layer of one block are more numbers than
/// an int32 indexes. Slots need no check: the product of two int32 fits an int64.
[[nodiscard]] inline result<void> validate(const cache_config& config) noexcept {
  struct field {
    const char* subject;
    std::int32_t value;
  };
  const auto fields = std::array{
      field{"cache_config.block_size", config.block_size}, field{"cache_config.num_blocks", config.num_blocks},
      field{"cache_config.num_layers", config.num_layers}, field{"cache_config.num_kv_heads", config.num_kv_heads},
      field{"cache_config.head_dim", config.head_dim},     field{"cache_config.max_sequences", config.max_sequences},
  };
  for (const auto& [subject, value] : fields) {
    if (value <= 0) {
      return error{error_code::invalid_argument, subject, value, 1};
    }
  }
  if (config.max_blocks != 0 && config.max_blocks < config.num_blocks) {
    return error{error_code::invalid_argument, "cache_config.max_blocks", config.max_blocks, config.num_blocks};
  }
  if (config.scales != nullptr && !config.groups.empty()) {
    return error{error_code::invalid_argument, "cache_config.scales beside groups, which have their own,", 1, 0};
  }
  constexpr auto limit = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  const auto rows = std::int64_t{config.block_size} * config.num_kv_heads;
  if (rows > limit) {
    return error{error_code::size_overflow, "cache_config.block_size * num_kv_heads", rows, limit};
  }
  const auto numbers = rows * config.head_dim * 2;
  if (numbers > limit) {
    return error{error_code::size_overflow, "cache_config.block_size * num_kv_heads * head_dim * 2", numbers, limit};
  }
  return validate(config.groups);
}

}  // namespace pagedkv
