#pragma once

#include <pagedkv/kernels/block_batch.hpp>
#include <pagedkv/kernels/transfer.hpp>

namespace pagedkv::kernels {

/// Where the rows of a batch of block pairs lie in one layer: row = (pair * block_size + offset) * num_kv_heads + head.
struct block_rows {
  divider num_kv_heads;
  divider block_size;
};

/// Stores the numbers of blocks anew, as another element. The grid's y is the layer.
template <class To, class From, int N>
__global__ void __launch_bounds__(row_workgroup_size)
    convert_blocks_kernel(row_spread spread, block_rows rows, block_storage_view from, block_storage_view to,
                          block_batch batch) {
  for_each_row(spread, [&](std::int64_t row) {
    const auto active = row >= 0;
    auto source = plain_source<From, N>{};
    auto destination = row_pair<typename To::storage>{};
    if (active) {
      const auto [token, head] = rows.num_kv_heads.split(row);
      const auto [pair, offset] = rows.block_size.split(token);
      const auto layer = static_cast<std::int32_t>(blockIdx.y);
      const auto blocks = batch.pairs[pair];
      const auto read = rows_in_block<From>(from, layer, blocks.source, offset, head);
      source.rows = {read.key, read.value, read.key_scale, read.value_scale};
      destination = rows_in_block<To>(to, layer, blocks.destination, offset, head);
    }
    transfer<To, N>(spread, source, destination, active);
  });
}

/// Enqueues the conversion of blocks of `from`, stored as `From`, into blocks of `to`, stored as `To`; the two share no
/// memory and agree in layers, block size, heads and head dimension, not necessarily in layout. Slots that were never
/// written are converted too, to something as meaningless. The pairs may go when the call returns.
template <class To, class From>
[[nodiscard]] hipError_t convert_blocks(const block_storage_view& from, const block_storage_view& to,
                                        std::span<const block_pair> pairs, hipStream_t stream) {
  static_assert(!std::is_same_v<To, From>, "blocks of equal elements are copied");
  constexpr auto most = numbers_per_lane<To, From>;
  const auto aligned = aligned_rows<typename From::storage, most>(from) && aligned_rows<typename To::storage, most>(to);
  const auto rows = block_rows{divider(from.num_kv_heads), divider(from.block_size)};
  const auto rows_per_block = std::int64_t{from.block_size} * from.num_kv_heads;
  return launch_batches(pairs, [&](const block_batch& batch) {
    return launch_rows<most>(aligned, batch.num_pairs * rows_per_block, from.head_dim,
                             [&](auto width, row_launch plan) {
                               plan.shape.grid.y = static_cast<std::uint32_t>(from.num_layers);
                               return launch<convert_blocks_kernel<To, From, decltype(width)::value>>(
                                   plan.shape, stream, plan.spread, rows, from, to, batch);
                             });
  });
}

}  // namespace pagedkv::kernels
