#pragma once

// Rows of tokens that a warpgroup copies for products. Empty for other compilers.

#include <pagedkv/kernels/attention/warpgroup_nvidia.hpp>

#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

  #include <pagedkv/kernels/attention/walk.hpp>
  #include <pagedkv/kernels/divider.hpp>

namespace pagedkv::kernels {

/// The place of a token's row in the cache.
struct warpgroup_row {
  std::int32_t block = -1;  // negative: a list skips it
  std::int32_t offset = 0;  // tokens from the block's start

  /// Finds the row to read at a place among the tiles of a row of the batch.
  PAGEDKV_DEVICE void find(const attention_call& call, const attention_row& row,
                           const divider<std::int32_t>& block_size, std::int32_t place) {
    const auto last = row.num_tokens - 1;
    const auto unseen = row.num_tokens - row.num_queries - call.window + 1;
    const auto first = call.window > 0 && unseen > 0 ? unseen : 0;
    block = -1;
    offset = 0;
    const auto nearest = token_to_read(call, row, place, first, last);
    if (nearest >= 0) {
      const auto [index, of_token] = block_size.split(nearest);
      offset = of_token;
      block = static_cast<std::int32_t>(load(call.indices + row.first_index + index));
    }
  }
};

}  // namespace pagedkv::kernels

#endif
