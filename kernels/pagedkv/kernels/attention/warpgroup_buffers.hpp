#pragma once

// Shared memory of attention of prompts with products of warpgroups. Empty for other compilers.

#include <pagedkv/kernels/attention/warpgroup_barriers.hpp>

#include <cstddef>

#if defined(__CUDACC__) && !defined(__HIPCC__)

  #include <pagedkv/kernels/attention/walk.hpp>
  #include <pagedkv/kernels/attention/warpgroup_column.hpp>

namespace pagedkv::kernels {

/// The division of a workgroup's work: a warpgroup that copies, and two that compute 64 columns each. Keys and values
/// pass through shared memory in stages of 128 tokens.
template <int KeyDim, int ValueDim>
struct warpgroup_prefill_shape {
  static constexpr int lanes = 3 * warpgroup_lanes;
  static constexpr int tokens = 128;
  static constexpr int columns = 2 * columns_of_warpgroup;
  static constexpr int key_blocks = KeyDim / 64;
  static constexpr int value_blocks = ValueDim / 64;
  using rows = warpgroup_rows<tokens>;
  using query_rows = warpgroup_rows<columns>;
  static constexpr unsigned query_buffers = KeyDim > 128 ? 1 : 2;
  static constexpr unsigned stage_buffers = 2;
  static constexpr unsigned queries_bytes = key_blocks * query_rows::block_bytes;
  static constexpr unsigned keys_bytes = key_blocks * rows::block_bytes;
  static constexpr unsigned values_bytes = value_blocks * rows::block_bytes;
  static constexpr unsigned columns_bytes = columns * warpgroup_column::bytes;
  static constexpr unsigned queries = 0;
  static constexpr unsigned keys = queries + query_buffers * queries_bytes;
  static constexpr unsigned values = keys + stage_buffers * keys_bytes;
  static constexpr unsigned of_columns = values + stage_buffers * values_bytes;
  static constexpr unsigned pieces = of_columns + query_buffers * columns_bytes;
  static constexpr unsigned barriers = pieces + query_buffers * bytes_of_piece;
  static constexpr unsigned barriers_bytes = (query_buffers + 2 * stage_buffers) * 16;
  static constexpr unsigned alignment = 1024;
  static constexpr std::size_t bytes = barriers + barriers_bytes + alignment;
};

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

/// The buffers of a workgroup.
template <class Shape>
struct prefill_buffers {
  unsigned base = aligned_shared(Shape::alignment);
  buffer_ring<Shape::query_buffers> queries{base + Shape::barriers};
  buffer_ring<Shape::stage_buffers> keys{base + Shape::barriers + queries.bytes};
  buffer_ring<Shape::stage_buffers> values{base + Shape::barriers + queries.bytes + keys.bytes};

  /// By one lane. Lanes that copy queries also write columns, which each lane that computes reads by itself. Keys and
  /// values are only products' operands, so one lane of each wave says when it has used a buffer.
  PAGEDKV_DEVICE void begin() const {
    constexpr auto waves = static_cast<unsigned>(Shape::lanes - warpgroup_lanes) / 32;
    queries.begin(2 * warpgroup_lanes, 32 * waves);
    keys.begin(warpgroup_lanes, waves);
    values.begin(warpgroup_lanes, waves);
  }

  [[nodiscard]] PAGEDKV_DEVICE unsigned queries_at(unsigned use) const {
    return base + Shape::queries + queries.buffer_of(use) * Shape::queries_bytes;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned columns_at(unsigned use) const {
    return base + Shape::of_columns + queries.buffer_of(use) * Shape::columns_bytes;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned piece_at(unsigned use) const {
    return base + Shape::pieces + queries.buffer_of(use) * bytes_of_piece;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned keys_at(unsigned use) const {
    return base + Shape::keys + keys.buffer_of(use) * Shape::keys_bytes;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned values_at(unsigned use) const {
    return base + Shape::values + values.buffer_of(use) * Shape::values_bytes;
  }
};

/// The stages of a piece, of so many tokens each.
template <int Tokens>
struct warpgroup_stages {
  std::int32_t count;
  std::int32_t first_token;  // of the piece, and its end; with lists, counted like tiles
  std::int32_t end_token;

  explicit PAGEDKV_DEVICE warpgroup_stages(const attention_piece& walk) {
    constexpr auto step = Tokens / attention_tile;
    count = walk.end > walk.tile ? (walk.end - walk.tile + step - 1) / step : 0;
    first_token = (walk.row.first_tile + walk.tile) * attention_tile;
    end_token = (walk.row.first_tile + walk.end) * attention_tile;
  }
};

  #endif

}  // namespace pagedkv::kernels

#endif
