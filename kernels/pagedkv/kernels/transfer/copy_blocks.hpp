#pragma once

#include <pagedkv/core/host_device.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/executor/launch_shape.hpp>
#include <pagedkv/kernels/platform.hpp>
#include <pagedkv/kernels/transfer/block_batch.hpp>
#include <pagedkv/kernels/vector.hpp>

#include <limits>

namespace pagedkv::kernels {

/// The unit of a lane's accesses if the alignment permits; otherwise lanes move single bytes.
using wide_word = vector<std::uint32_t, vector_bytes / sizeof(std::uint32_t)>;

/// The bytes of one block in every layer, as words. A grid's x covers the words; its y is free for blocks.
struct block_words {
  static constexpr auto workgroup_size = 256;

  std::int32_t num_words = 0;
  divider<std::int32_t> words_per_layer;

  /// The address of a word; null past the last word.
  struct location {
    std::int32_t layer;
    std::int32_t in_layer;
  };

  [[nodiscard]] PAGEDKV_HOST_DEVICE bool covers(std::uint32_t word) const {
    return word < static_cast<std::uint32_t>(num_words);
  }

  [[nodiscard]] PAGEDKV_HOST_DEVICE location find(std::uint32_t word) const {
    const auto [layer, in_layer] = words_per_layer.split(static_cast<std::int32_t>(word));
    return {layer, in_layer};
  }
};

/// Whether every layer of every block starts at a multiple of a wide word.
[[nodiscard]] inline bool aligned_blocks(const block_storage_view& view) noexcept {
  return reinterpret_cast<std::uintptr_t>(view.base) % vector_bytes == 0 && view.block_stride % vector_bytes == 0 &&
         view.layer_stride % vector_bytes == 0;
}

/// Calls `launch_with(word, words, shape)` with a value of the widest word that the alignment permits, and a shape that
/// covers a block's words and `num_blocks` blocks or runs of blocks. Fails for a block of no words, or of more words
/// than 31 bits index.
template <class Launch>
[[nodiscard]] runtime::status launch_words(const block_storage_view& view, bool aligned, std::int32_t num_blocks,
                                           Launch launch_with) {
  const auto launch_word = [&](auto word) {
    const auto words_per_layer = view.layer_bytes() / static_cast<std::int64_t>(sizeof(word));
    if (words_per_layer == 0 || words_per_layer > std::numeric_limits<std::int32_t>::max() / view.num_layers) {
      return runtime::error_invalid_value;
    }
    const auto words = block_words{static_cast<std::int32_t>(words_per_layer * view.num_layers),
                                   divider<std::int32_t>(static_cast<std::int32_t>(words_per_layer))};
    const auto workgroups =
        (static_cast<std::uint32_t>(words.num_words) + words.workgroup_size - 1) / words.workgroup_size;
    return launch_with(
        word, words, launch_shape{{workgroups, static_cast<std::uint32_t>(num_blocks)}, {block_words::workgroup_size}});
  };
  return aligned ? launch_word(wide_word{}) : launch_word(std::byte{});
}

/// One launch of `copy_blocks`. Defined where kernels are compiled.
template <class Word>
[[nodiscard]] runtime::status launch_copies(const launch_shape& shape, runtime::stream stream,
                                            const block_storage_view& from, const block_storage_view& to,
                                            const block_words& words, const block_batch& batch);

/// Enqueues the copy of blocks in every layer, with scales and padding, from `from` to `to`. These may be the same
/// storage; otherwise they differ in memory, strides and number of blocks only. No destination is also a source or the
/// destination of another pair. The pairs are not used after the call returns.
[[nodiscard]] inline runtime::status copy_blocks(const block_storage_view& from, const block_storage_view& to,
                                                 std::span<const block_pair> pairs, runtime::stream stream) {
  const auto aligned = aligned_blocks(from) && aligned_blocks(to);
  return launch_batches(pairs, [&](const block_batch& batch) {
    return launch_words(from, aligned, batch.num_pairs, [&](auto word, const auto& words, const auto& shape) {
      return launch_copies<decltype(word)>(shape, stream, from, to, words, batch);
    });
  });
}

#if defined(PAGEDKV_COMPILES_KERNELS)

/// The index of the word that a lane copies.
[[nodiscard]] PAGEDKV_DEVICE inline std::uint32_t word_of_lane() {
  return workgroup_index().x * block_words::workgroup_size + local_index().x;
}

template <class Word>
[[nodiscard]] PAGEDKV_DEVICE Word* find_word(const block_storage_view& view, std::int32_t block,
                                             const block_words::location& at) {
  check(block >= 0 && block < view.num_blocks, "block within the storage");
  return reinterpret_cast<Word*>(view.block(at.layer, block)) + at.in_layer;
}

/// Copies blocks in every layer, within one storage or to another. The grid's y counts the pairs. One word per lane
/// suffices to keep the memory busy, because there are enough lanes. Batches of one call are independent, so each may
/// start as soon as the one before has started; it ends after that one, because the next kernel waits for the last
/// batch only.
template <class Word>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(block_words::workgroup_size)
    copy_blocks_kernel(block_storage_view from, block_storage_view to, block_words words, block_batch batch) {
  let_next_kernel_start();
  if (const auto word = word_of_lane(); words.covers(word)) {
    const auto at = words.find(word);
    const auto [source, destination] = batch.pairs[workgroup_index().y];
    store(find_word<Word>(to, destination, at), load(find_word<Word>(from, source, at)));
  }
  if (batch.follows && workgroup_index().x == 0 && workgroup_index().y == 0) {
    wait_for_previous_kernel();
  }
}

template <class Word>
[[nodiscard]] runtime::status launch_copies(const launch_shape& shape, runtime::stream stream,
                                            const block_storage_view& from, const block_storage_view& to,
                                            const block_words& words, const block_batch& batch) {
  return batch.follows ? launch_following<copy_blocks_kernel<Word>>(shape, stream, from, to, words, batch)
                       : launch<copy_blocks_kernel<Word>>(shape, stream, from, to, words, batch);
}

#endif

}  // namespace pagedkv::kernels
