#pragma once

#include <pagedkv/core/checked.hpp>
#include <pagedkv/core/error.hpp>

#include <limits>

namespace pagedkv {

/// The sizes of a cache. A plain value: `validate` says whether it can be built.
struct cache_config {
  std::int32_t block_size = 16;     // tokens in a block
  std::int32_t num_blocks = 0;      // blocks in the pool
  std::int32_t num_layers = 1;      // layers of the model
  std::int32_t num_kv_heads = 1;    // key/value heads in a layer
  std::int32_t head_dim = 64;       // numbers in one key or value of one head
  std::int32_t max_sequences = 4096;  // sequences alive at once
  std::uint64_t hash_seed = 0;      // of the prefix index; 0 draws one at random
};

/// Errors: `invalid_argument` names the first field that is not positive; `size_overflow` when the tokens of the pool or
/// the numbers of one layer of one block exceed what kernels index.
[[nodiscard]] result<void> validate(const cache_config& config) noexcept;

}  // namespace pagedkv
