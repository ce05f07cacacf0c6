#pragma once

// Shared memory of attention over latent vectors with products of warpgroups. Empty for other compilers.

#include <pagedkv/kernels/attention/warpgroup_buffers.hpp>

#include <cstddef>

#if defined(__CUDACC__) && !defined(__HIPCC__)

  #include <pagedkv/kernels/attention/launcher.hpp>

namespace pagedkv::kernels {

/// The division of a workgroup's work: a warpgroup that copies, and two that compute. Vectors pass through shared memory
/// in stages of 32 tokens, each in parts that are copied and released one by one: the values of which each warpgroup that
/// computes multiplies a half, and the numbers that are only keys.
struct warpgroup_latent_shape {
  static constexpr int consumers = 2;
  static constexpr int lanes = (1 + consumers) * warpgroup_lanes;
  static constexpr int tokens = 32;
  static constexpr int columns = columns_of_warpgroup;
  using rows = warpgroup_rows<tokens>;
  using query_rows = warpgroup_rows<columns>;
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
  static constexpr unsigned sums = references + columns * 4;  // [2][consumers][columns]
  static constexpr unsigned of_columns = sums + 2 * consumers * columns * 4;
  static constexpr unsigned barriers = of_columns + columns * warpgroup_column::bytes;
  static constexpr unsigned barriers_bytes = (1 + parts * stage_buffers + consumers) * 16;
  static constexpr unsigned alignment = 1024;
  static constexpr std::size_t bytes = barriers + barriers_bytes + alignment;

  [[nodiscard]] static PAGEDKV_HOST_DEVICE constexpr int blocks_of(int part) {
    return part == keys_only ? blocks - consumers * value_blocks : value_blocks;
  }
};

static_assert(warpgroup_latent_shape::bytes <= 227 * 1024);

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

/// The buffers of a workgroup. Queries are used once a piece, stages once each.
struct latent_buffers {
  using shape = warpgroup_latent_shape;
  using part_ring = buffer_ring<shape::stage_buffers>;

  unsigned base = aligned_shared(shape::alignment);
  buffer_ring<1> queries{base + shape::barriers};

  /// By one lane. A warpgroup that computes releases the parts of values that it multiplies, and what is only keys of its
  /// own stages: one lane of each wave, since only products read these. Factors and weights are each lane's.
  PAGEDKV_DEVICE void begin() const {
    constexpr auto waves = static_cast<unsigned>(warpgroup_lanes / 32);
    queries.begin(2 * warpgroup_lanes, shape::consumers * warpgroup_lanes);
    for (auto i = 0; i < shape::parts; ++i) {
      part(i).begin(warpgroup_lanes, waves);
    }
    for (auto group = 0; group < shape::consumers; ++group) {
      weights_of(group).begin(warpgroup_lanes);
    }
  }

  [[nodiscard]] PAGEDKV_DEVICE part_ring part(int i) const {
    return part_ring(base + shape::barriers + queries.bytes + static_cast<unsigned>(i) * part_ring::bytes);
  }

  /// A phase ends when the warpgroup has written the weights of a stage of its own.
  [[nodiscard]] PAGEDKV_DEVICE phase_barrier weights_of(int group) const {
    return phase_barrier(base + shape::barriers + queries.bytes + shape::parts * part_ring::bytes +
                         static_cast<unsigned>(group) * phase_barrier::bytes);
  }

  [[nodiscard]] PAGEDKV_DEVICE unsigned part_at(unsigned use, int i) const {
    return base + shape::stages + part_ring::buffer_of(use) * shape::stage_bytes +
           static_cast<unsigned>(i) * shape::part_bytes;
  }
};

  #endif

}  // namespace pagedkv::kernels

#endif
