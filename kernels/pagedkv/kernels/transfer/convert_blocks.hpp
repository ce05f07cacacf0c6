#pragma once

#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/kernels/launchers.hpp>
#include <pagedkv/kernels/transfer.hpp>
#include <pagedkv/kernels/transfer/block_batch.hpp>
#include <pagedkv/kernels/transfer/convert_tiles.hpp>

namespace pagedkv::kernels {

/// Stores the numbers of blocks as another element. The grid's x counts the tokens of all pairs; its y is the layer.
template <class To, class From, int N>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(row_workgroup_size)
    convert_blocks_kernel(row_spread spread, divider<std::int32_t> block_size, block_storage_view from,
                          block_storage_view to, block_batch batch) {
  const auto row = find_row(spread);
  const auto active = row.token >= 0;
  const auto [pair, offset] = block_size.split(row.token_or_first());
  const auto layer = static_cast<std::int32_t>(workgroup_index().y);
  const auto blocks = batch.pairs[pair];
  const auto read = rows_in_block<From>(from, layer, blocks.source, offset, row.head);
  const auto source = plain_source<From, N>{{read.key, read.value, read.key_scale, read.value_scale}};
  const auto destination = rows_in_block<To>(to, layer, blocks.destination, offset, row.head);
  transfer<To, N>(spread, source, active, active, [&] { return destination; });
}

template <class To, class From>
[[nodiscard]] runtime::status convert_rows(const block_storage_view& from, const block_storage_view& to,
                                             std::span<const block_pair> pairs, runtime::stream stream) {
  constexpr auto most = numbers_per_lane<To>;
  const auto aligned = aligned_rows<typename From::storage, most>(from) && aligned_rows<typename To::storage, most>(to);
  const auto block_size = divider<std::int32_t>(from.block_size);
  return launch_batches(pairs, [&](const block_batch& batch) {
    return launch_rows<most>(aligned, std::int64_t{batch.num_pairs} * from.block_size, from.num_kv_heads, from.head_dim,
                             [&](auto width, const row_spread& spread, launch_shape shape) {
                               shape.grid.y = static_cast<std::uint32_t>(from.num_layers);
                               return launch<convert_blocks_kernel<To, From, decltype(width)::value>>(
                                   shape, stream, spread, block_size, from, to, batch);
                             });
  });
}

template <class To, class From>
[[nodiscard]] runtime::status convert_blocks(const block_storage_view& from, const block_storage_view& to,
                                             std::span<const block_pair> pairs, runtime::stream stream) {
  if constexpr (std::is_same_v<To, From>) {
    return convert_tiles<To, From>(from, to, pairs, stream);
  } else {
    return from.strided() && to.strided() ? convert_rows<To, From>(from, to, pairs, stream)
                                          : convert_tiles<To, From>(from, to, pairs, stream);
  }
}

}  // namespace pagedkv::kernels
