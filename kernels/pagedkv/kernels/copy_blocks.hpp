#pragma once

#include <pagedkv/kernels/block_words.hpp>

namespace pagedkv::kernels {

/// Words that a lane has under way at once when it copies.
inline constexpr auto words_per_copy = 4;

/// Copies block after block in every layer, from one storage to another or within one.
template <int N = words_per_copy>
__global__ void __launch_bounds__(block_words::workgroup_size)
    copy_blocks_kernel(block_storage_view from, block_storage_view to, block_words words, block_batch batch) {
  const auto num_words = words.num_words(batch.num_pairs);
  const auto tile = std::int64_t{N} * block_words::workgroup_size;
  for (auto first = blockIdx.x * tile + threadIdx.x; first < num_words; first += gridDim.x * tile) {
    block_words::place places[std::size_t{N}];
    block_word held[std::size_t{N}];
    // All loads of a lane are under way before its first store.
    for (auto i = 0; i < N; ++i) {
      const auto word = first + i * block_words::workgroup_size;
      if (word < num_words) {
        places[i] = words.find(word);
        held[i] = load_word(from, batch.pairs[places[i].block].source, places[i]);
      }
    }
    for (auto i = 0; i < N; ++i) {
      if (first + i * block_words::workgroup_size < num_words) {
        store_word(to, batch.pairs[places[i].block].destination, places[i], held[i]);
      }
    }
  }
}

/// Enqueues the copy of blocks in every layer, scales and padding along, from `from` to `to`, which may be the same
/// storage and otherwise differ in memory, strides and number of blocks only. No destination is also a source or the
/// destination of two pairs. The pairs may go when the call returns.
[[nodiscard]] inline hipError_t copy_blocks(const block_storage_view& from, const block_storage_view& to,
                                            std::span<const block_pair> pairs, hipStream_t stream) {
  const auto words = make_block_words(from, aligned_blocks(from) && aligned_blocks(to));
  if (!words) {
    return hipErrorInvalidValue;
  }
  return launch_batches(pairs, [&](const block_batch& batch) {
    const auto shape = cover_words(words->num_words(batch.num_pairs), words_per_copy);
    return launch<copy_blocks_kernel<>>(shape, stream, from, to, *words, batch);
  });
}

}  // namespace pagedkv::kernels
