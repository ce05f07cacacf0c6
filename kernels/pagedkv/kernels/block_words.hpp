#pragma once

#include <pagedkv/kernels/block_batch.hpp>

#include <limits>
#include <optional>

namespace pagedkv::kernels {

/// The bytes of one block in every layer, as words that lanes move: first vectors, then the single bytes that are left.
struct block_words {
  static constexpr auto workgroup_size = 256;

  std::int64_t layer_bytes = 0;
  std::int32_t num_layers = 0;
  std::int32_t word_bytes = vector_bytes;  // 16, or 1 where alignment does not permit more
  divider words_per_layer;
  divider words_per_block;

  [[nodiscard]] PAGEDKV_HOST_DEVICE std::int64_t num_words(std::int64_t num_blocks) const {
    return num_blocks * num_layers * layer_words();
  }

  [[nodiscard]] PAGEDKV_HOST_DEVICE std::int64_t layer_words() const {
    return layer_bytes / word_bytes + layer_bytes % word_bytes;
  }

  struct place {
    std::int32_t block;  // counted among those of the launch
    std::int32_t layer;
    std::int64_t byte;
    bool whole;  // a vector, or a single byte
  };

  [[nodiscard]] __device__ place find(std::int64_t word) const {
    const auto [block, in_block] = words_per_block.split(word);
    const auto [layer, in_layer] = words_per_layer.split(in_block);
    const auto vectors = layer_bytes / word_bytes;
    const auto whole = word_bytes > 1 && in_layer < vectors;
    const auto byte =
        in_layer < vectors ? std::int64_t{in_layer} * word_bytes : vectors * word_bytes + (in_layer - vectors);
    return {static_cast<std::int32_t>(block), static_cast<std::int32_t>(layer), byte, whole};
  }
};

/// Whether every layer of every block starts at a multiple of a vector.
[[nodiscard]] inline bool aligned_blocks(const block_storage_view& view) noexcept {
  return reinterpret_cast<std::uintptr_t>(view.base) % vector_bytes == 0 && view.block_stride % vector_bytes == 0 &&
         view.layer_stride % vector_bytes == 0;
}

/// Nothing for a block of more words than 31 bits count.
[[nodiscard]] inline std::optional<block_words> make_block_words(const block_storage_view& view, bool aligned) {
  auto words = block_words{view.layer_bytes(), view.num_layers, aligned ? vector_bytes : 1, {}, {}};
  if (words.num_words(1) > std::numeric_limits<std::int32_t>::max()) {
    return std::nullopt;
  }
  words.words_per_layer = divider(static_cast<std::int32_t>(words.layer_words()));
  words.words_per_block = divider(static_cast<std::int32_t>(words.num_words(1)));
  return words;
}

[[nodiscard]] inline launch_shape cover_words(std::int64_t num_words, std::int64_t words_per_lane) {
  constexpr auto max_workgroups = std::int64_t{1} << 20;
  const auto tile = words_per_lane * block_words::workgroup_size;
  const auto workgroups = (num_words + tile - 1) / tile;
  return {dim3(static_cast<std::uint32_t>(workgroups < max_workgroups ? workgroups : max_workgroups)),
          dim3(block_words::workgroup_size)};
}

/// One vector, or one byte in its place.
struct block_word {
  vector<std::uint32_t, 4> whole;
  std::byte single;
};

[[nodiscard]] __device__ inline block_word load_word(const block_storage_view& view, std::int32_t block,
                                                     const block_words::place& at) {
  check(block >= 0 && block < view.num_blocks, "block within the storage");
  const auto* const from = view.block(at.layer, block) + at.byte;
  auto word = block_word{};
  if (at.whole) {
    word.whole = load_vector<4>(reinterpret_cast<const std::uint32_t*>(from));
  } else {
    word.single = load(from);
  }
  return word;
}

__device__ inline void store_word(const block_storage_view& view, std::int32_t block, const block_words::place& at,
                                  const block_word& word) {
  check(block >= 0 && block < view.num_blocks, "block within the storage");
  auto* const to = view.block(at.layer, block) + at.byte;
  if (at.whole) {
    store_vector<4>(reinterpret_cast<std::uint32_t*>(to), word.whole);
  } else {
    store(to, word.single);
  }
}

}  // namespace pagedkv::kernels
