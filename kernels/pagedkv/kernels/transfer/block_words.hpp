#pragma once

#include <pagedkv/core/host_device.hpp>
#include <pagedkv/executor/launch_shape.hpp>
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

}  // namespace pagedkv::kernels
