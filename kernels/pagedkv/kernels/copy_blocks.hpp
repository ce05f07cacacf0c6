#pragma once

#include <pagedkv/kernels/block_words.hpp>

namespace pagedkv::kernels {

/// Copies blocks in every layer, from one storage to another or within one. The grid's y counts the pairs. A word per
/// lane suffices: enough lanes are at work to keep the memory busy.
template <class Word>
__global__ void __launch_bounds__(block_words::workgroup_size)
    copy_blocks_kernel(block_storage_view from, block_storage_view to, block_words words, block_batch batch) {
  if (const auto word = words.word(); words.covers(word)) {
    const auto at = words.find(word);
    const auto [source, destination] = batch.pairs[blockIdx.y];
    store(find_word<Word>(to, destination, at), load(find_word<Word>(from, source, at)));
  }
}

/// Enqueues the copy of blocks in every layer, scales and padding along, from `from` to `to`, which may be the same
/// storage and otherwise differ in memory, strides and number of blocks only. No destination is also a source or the
/// destination of two pairs. The pairs may go when the call returns.
[[nodiscard]] inline hipError_t copy_blocks(const block_storage_view& from, const block_storage_view& to,
                                            std::span<const block_pair> pairs, hipStream_t stream) {
  const auto aligned = aligned_blocks(from) && aligned_blocks(to);
  return launch_batches(pairs, [&](const block_batch& batch) {
    return launch_words(from, aligned, batch.num_pairs, [&](auto word, const auto& words, const auto& shape) {
      return launch<copy_blocks_kernel<decltype(word)>>(shape, stream, from, to, words, batch);
    });
  });
}

}  // namespace pagedkv::kernels
