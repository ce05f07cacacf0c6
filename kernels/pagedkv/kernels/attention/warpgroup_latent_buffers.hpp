#pragma once

// Shared memory of attention over latent vectors with products of warpgroups. Empty for other compilers.

#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/kernels/attention/warpgroup_buffers.hpp>

#include <cstddef>

#if defined(__CUDACC__) && !defined(__HIPCC__)

  #include <pagedkv/kernels/attention/launcher.hpp>

namespace pagedkv::kernels {

/// The division of a workgroup's work: a warpgroup that copies, one that expands packed tokens, and two that compute.
/// Vectors pass through shared memory in stages of 32 tokens, each in parts that are copied and released one by one:
/// the values of which each warpgroup that computes multiplies a half, and the numbers that are only keys.
template <class Element>
struct warpgroup_latent_shape {
  static constexpr int producers = packs_tokens<Element> ? 2 : 1;
  static constexpr int consumers = 2;
  static constexpr int lanes = (producers + consumers) * warpgroup_lanes;
  static constexpr int tokens = 32;
  static constexpr int columns = columns_of_warpgroup;
  using rows = warpgroup_rows<tokens>;
  using query_rows = warpgroup_rows<columns>;
  /// Whether lanes keep the queries' part that is only for keys in registers. Expansion takes too many of these.
  static constexpr bool keeps_rotated_queries = !packs_tokens<Element>;
  static constexpr int parts = consumers + 1;
  static constexpr int keys_only = consumers;  // the part
  static constexpr int blocks = largest_plain_dim / 64;
  static constexpr int value_blocks = largest_value_dim / 64 / consumers;  // of a part
  static constexpr unsigned part_bytes = value_blocks * rows::block_bytes;
  static constexpr unsigned stage_bytes = blocks * rows::block_bytes;
  static constexpr unsigned stage_buffers = 4;
  static constexpr unsigned queries = 0;
  static constexpr unsigned stages = queries + blocks * query_rows::block_bytes;
  static constexpr unsigned weights = stages + stage_buffers * stage_bytes;
  static constexpr unsigned references = weights + columns * tokens * 2;
  static constexpr unsigned sums = references + columns * 4;  // [consumers][columns]
  static constexpr unsigned of_columns = sums + consumers * columns * 4;
  static constexpr unsigned pieces = of_columns + 2 * columns * warpgroup_column::bytes;
  static constexpr unsigned barriers = pieces + 2 * bytes_of_piece;
  static constexpr unsigned num_barriers = 2 + (2 * parts + consumers) * stage_buffers + consumers;
  static constexpr unsigned values_ended = barriers + num_barriers * 8;
  static constexpr unsigned alignment = 1024;
  static constexpr std::size_t bytes = values_ended + 8 + alignment;

  [[nodiscard]] static PAGEDKV_HOST_DEVICE constexpr int blocks_of(int part) {
    return part == keys_only ? blocks - consumers * value_blocks : value_blocks;
  }

  static_assert(bytes <= 227 * 1024);
};

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

/// The bytes of a stored row that hold a part of its numbers: blocks of 128 bytes from `first` on.
template <class Element>
struct stored_part {
  using shape = warpgroup_latent_shape<Element>;

  int blocks;
  int first;
  bool packed = false;  // to be expanded; else as products read them

  /// The bits that chunks of a row are permuted by in shared memory. Expansion reads half of a block of two rows at
  /// once.
  [[nodiscard]] PAGEDKV_DEVICE constexpr unsigned swizzle(unsigned row) const { return packed ? row % 2 * 4 : row % 8; }

  [[nodiscard]] static PAGEDKV_DEVICE constexpr stored_part of(int part) {
    constexpr auto block_bytes = 128;
    if constexpr (packs_tokens<Element>) {
      constexpr auto blocks = shape::value_blocks / 2;
      return part == shape::keys_only ? stored_part{1, Element::packed.rotated_offset}
                                      : stored_part{blocks, part * blocks * block_bytes, true};
    } else {
      return {shape::blocks_of(part), part * shape::value_blocks * block_bytes};
    }
  }
};

/// The buffers of a workgroup. Queries are used once a piece, stages once each. The warpgroup that copies says which
/// pieces there are.
template <class Element>
struct latent_buffers {
  using shape = warpgroup_latent_shape<Element>;
  using part_ring = buffer_ring<shape::stage_buffers>;

  unsigned base = aligned_shared(shape::alignment);
  buffer_ring<1> queries{base + shape::barriers};

  /// By one lane. A warpgroup that computes releases the parts of values that it multiplies, and what is only keys of
  /// its own stages: one lane of each wave, since only products read these. Factors and weights are each lane's.
  PAGEDKV_DEVICE void begin() const {
    constexpr auto waves = static_cast<unsigned>(warpgroup_lanes / 32);
    put_word(base + shape::values_ended, 0);
    queries.begin(2 * warpgroup_lanes, shape::consumers * warpgroup_lanes);
    for (auto i = 0; i < shape::parts; ++i) {
      part(i).begin(warpgroup_lanes, waves);
    }
    for (auto i = 0; i < shape::consumers; ++i) {
      weights_of(i).begin(warpgroup_lanes);
      for (auto buffer = 0U; buffer < shape::stage_buffers; ++buffer) {
        packed_values(buffer, i).begin(warpgroup_lanes);
      }
    }
  }

  [[nodiscard]] PAGEDKV_DEVICE part_ring part(int i) const {
    return part_ring(base + shape::barriers + queries.bytes + static_cast<unsigned>(i) * part_ring::bytes);
  }

  /// A phase ends when the warpgroup has written the weights of a stage of its own.
  [[nodiscard]] PAGEDKV_DEVICE phase_barrier weights_of(int group) const {
    return barrier_after_parts(static_cast<unsigned>(group));
  }

  /// A phase ends when part `i` of a stage is there as packed tokens store it, to be expanded.
  [[nodiscard]] PAGEDKV_DEVICE phase_barrier packed_values(unsigned use, int i) const {
    return barrier_after_parts(shape::consumers + static_cast<unsigned>(i) * shape::stage_buffers +
                               part_ring::buffer_of(use));
  }

  /// By all lanes that copy. Says that no packed values follow those before a use.
  PAGEDKV_DEVICE void end_packed_values(unsigned use, bool writes) const {
    for (auto i = 0U; i < shape::stage_buffers; ++i) {
      part(0).wait_until_empty(use + i);  // lanes that expand have looked at the flag for all earlier stages
    }
    if (writes) {
      put_word(base + shape::values_ended, 1);
    }
    for (auto i = 0; i < shape::consumers; ++i) {
      packed_values(use, i).arrive();
    }
  }

  [[nodiscard]] PAGEDKV_DEVICE bool packed_values_ended() const { return take_word(base + shape::values_ended) != 0; }

  /// Pieces and columns have two places in turn: lanes that compute need them until they have written results.
  [[nodiscard]] PAGEDKV_DEVICE unsigned piece_at(unsigned use) const {
    return base + shape::pieces + use % 2 * bytes_of_piece;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned columns_at(unsigned use) const {
    return base + shape::of_columns + use % 2 * shape::columns * warpgroup_column::bytes;
  }

  [[nodiscard]] PAGEDKV_DEVICE unsigned part_at(unsigned use, int i) const {
    return base + shape::stages + part_ring::buffer_of(use) * shape::stage_bytes +
           static_cast<unsigned>(i) * shape::part_bytes;
  }

 private:
  [[nodiscard]] PAGEDKV_DEVICE phase_barrier barrier_after_parts(unsigned i) const {
    return phase_barrier(base + shape::barriers + queries.bytes + shape::parts * part_ring::bytes +
                         i * phase_barrier::bytes);
  }
};

  #endif

}  // namespace pagedkv::kernels

#endif
