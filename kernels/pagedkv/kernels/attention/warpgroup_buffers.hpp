#pragma once

#include <pagedkv/kernels/attention/warpgroup_barriers.hpp>
#include <pagedkv/kernels/attention/warpgroup_nvidia.hpp>

#include <cstddef>

#if defined(__CUDACC__) && !defined(__HIPCC__)

  #include <pagedkv/kernels/attention/launcher.hpp>
  #include <pagedkv/kernels/attention/scores.hpp>
  #include <pagedkv/kernels/attention/walk.hpp>
  #include <type_traits>

// Pieces and columns that warpgroups pass in shared memory, for code compiled for sm_90a. Empty for other compilers.

namespace pagedkv::kernels {

/// A column's query, and the factor of its products with keys.
struct warpgroup_column {
  static constexpr unsigned bytes = 16;  // in shared memory

  query_column query;
  float factor;
};

/// Bytes of a piece in shared memory. A row without tasks says that no piece follows.
inline constexpr unsigned bytes_of_piece = 48;

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

/// A row's words.
using row_words = vector<lane_word, 8>;
static_assert(sizeof(row_words) == sizeof(attention_row));  // nvcc 12 instantiates it here: for a bit cast, it does not

PAGEDKV_DEVICE inline void put_piece(unsigned to, const attention_piece& piece) {
  const auto words = __builtin_bit_cast(row_words, piece.row);
  put_chunk(to, {words.values[0], words.values[1], words.values[2], words.values[3]});
  put_chunk(to + 16, {words.values[4], words.values[5], words.values[6], words.values[7]});
  put_chunk(to + 32, {static_cast<lane_word>(piece.task), static_cast<lane_word>(piece.tile),
                      static_cast<lane_word>(piece.end), static_cast<lane_word>(piece.whole ? -1 : piece.partial)});
}

PAGEDKV_DEVICE inline void end_pieces(unsigned to) { put_piece(to, {{0, 0, 0, 0, 0, 0, 0, 0}, 0, 0, 0, 0, 0, true}); }

[[nodiscard]] PAGEDKV_DEVICE inline attention_piece take_piece(unsigned from) {
  registers<lane_word, 3, 4> words;
  PAGEDKV_UNROLL
  for (auto i = 0U; i < 3; ++i) {
    take_chunk(from + i * 16, words[i]);
  }
  auto piece = attention_piece{};
  piece.row = __builtin_bit_cast(attention_row, (row_words{{words[0][0], words[0][1], words[0][2], words[0][3],
                                                            words[1][0], words[1][1], words[1][2], words[1][3]}}));
  piece.task = static_cast<std::int32_t>(words[2][0]);
  piece.tile = static_cast<std::int32_t>(words[2][1]);
  piece.end = static_cast<std::int32_t>(words[2][2]);
  piece.partial = static_cast<std::int32_t>(words[2][3]);
  piece.whole = piece.partial < 0;
  return piece;
}

/// The row of a piece in shared memory, which is read where a row is needed.
struct row_of_piece {
  unsigned piece;  // its address

  [[nodiscard]] PAGEDKV_DEVICE operator attention_row() const { return take_piece(piece).row; }
};

/// `columns`: the address of the first one.
PAGEDKV_DEVICE inline void put_column(unsigned columns, int index, const warpgroup_column& column) {
  const registers<lane_word, 4> words = {
      static_cast<lane_word>(column.query.token), static_cast<lane_word>(column.query.head),
      static_cast<lane_word>(column.query.position), __builtin_bit_cast(lane_word, column.factor)};
  put_chunk(columns + static_cast<unsigned>(index) * warpgroup_column::bytes, words);
}

[[nodiscard]] PAGEDKV_DEVICE inline warpgroup_column take_column(unsigned columns, int index) {
  registers<lane_word, 4> words;
  take_chunk(columns + static_cast<unsigned>(index) * warpgroup_column::bytes, words);
  return {
      {static_cast<std::int32_t>(words[0]), static_cast<std::int32_t>(words[1]), static_cast<std::int32_t>(words[2])},
      __builtin_bit_cast(float, words[3])};
}

  #endif

}  // namespace pagedkv::kernels

// Shared memory of attention of prompts with products of warpgroups. Empty for other compilers.

namespace pagedkv::kernels {

/// The numbers that products of prompts multiply. bfloat16 holds all numbers of int8 and float8, and has the range of
/// scales.
template <class Element, class Numbers>
using prefill_number = std::conditional_t<sizeof(typename Element::storage) == 1, typename Numbers::brain,
                                          typename Numbers::template of_products<Element>>;

/// The division of a workgroup's work: a warpgroup that copies, one that expands numbers of 8 bits, and two that
/// compute 64 columns each. Keys and values pass through shared memory in stages of 128 tokens, or 64 where values have
/// more than 128 numbers.
template <class Element, int KeyDim, int ValueDim>
struct warpgroup_prefill_shape {
  static constexpr bool expands = sizeof(typename Element::storage) == 1;
  static constexpr int producers = expands ? 2 : 1;
  static constexpr int consumers = 2;
  static constexpr int lanes = (producers + consumers) * warpgroup_lanes;
  static constexpr int tokens = ValueDim > 128 ? 64 : 128;
  static constexpr int columns = consumers * columns_of_warpgroup;
  static_assert(columns == warpgroup_group_columns);
  static constexpr int key_blocks = KeyDim / 64;
  static constexpr int value_blocks = ValueDim / 64;
  using rows = warpgroup_rows<tokens>;
  using query_rows = warpgroup_rows<columns>;
  static constexpr unsigned query_buffers = KeyDim > 128 ? 1 : 2;
  /// Where values have more than 128 numbers, a piece outlasts its queries: it is read again where it is needed.
  static constexpr unsigned piece_buffers = ValueDim > 128 ? 2 : query_buffers;
  static constexpr unsigned stage_buffers = 2;
  static constexpr unsigned queries_bytes = key_blocks * query_rows::block_bytes;
  static constexpr unsigned keys_bytes = key_blocks * rows::block_bytes;
  static constexpr unsigned values_bytes = value_blocks * rows::block_bytes;
  static constexpr unsigned columns_bytes = columns * warpgroup_column::bytes;
  /// Scales of a stage's keys, then those of its values.
  static constexpr unsigned scale_buffers = Element::scaled ? 4 : 0;
  static constexpr unsigned scales_bytes = tokens * 4;
  /// Rows of 8-bit numbers as they are stored.
  static constexpr unsigned stored_buffers = 3;
  static constexpr unsigned stored_rows = 64;
  static constexpr unsigned stored_row_bytes = 128;
  static constexpr unsigned stored_bytes = stored_rows * stored_row_bytes;
  static constexpr unsigned queries = 0;
  static constexpr unsigned keys = queries + query_buffers * queries_bytes;
  static constexpr unsigned values = keys + stage_buffers * keys_bytes;
  static constexpr unsigned of_columns = values + stage_buffers * values_bytes;
  static constexpr unsigned scales = of_columns + query_buffers * columns_bytes;
  static constexpr unsigned stored = scales + scale_buffers * 2 * scales_bytes;
  static constexpr unsigned pieces = stored + (expands ? stored_buffers * stored_bytes : 0);
  static constexpr unsigned barriers = pieces + piece_buffers * bytes_of_piece;
  static constexpr unsigned barriers_bytes = (query_buffers + 2 * stage_buffers + stored_buffers) * 16;
  static constexpr unsigned stored_ended = barriers + barriers_bytes;
  static constexpr unsigned alignment = 1024;
  static constexpr std::size_t bytes = stored_ended + 8 + alignment;
};

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

/// The buffers of a workgroup.
template <class Shape>
struct prefill_buffers {
  unsigned base = aligned_shared(Shape::alignment);
  buffer_ring<Shape::query_buffers> queries{base + Shape::barriers};
  buffer_ring<Shape::stage_buffers> keys{base + Shape::barriers + queries.bytes};
  buffer_ring<Shape::stage_buffers> values{base + Shape::barriers + queries.bytes + keys.bytes};
  buffer_ring<Shape::stored_buffers> stored{base + Shape::barriers + queries.bytes + keys.bytes + values.bytes};

  /// By one lane. Lanes that copy queries also write columns, which each lane that computes reads by itself. Lanes that
  /// copy scales say when those of keys are there. Keys and values are only products' operands, so one lane of each
  /// wave says when it has used a buffer.
  PAGEDKV_DEVICE void begin() const {
    constexpr auto waves = static_cast<unsigned>(Shape::consumers * warpgroup_lanes) / 32;
    queries.begin(2 * warpgroup_lanes, 32 * waves);
    keys.begin((Shape::scale_buffers > 0 ? 2 : 1) * warpgroup_lanes, waves);
    values.begin(warpgroup_lanes, waves);
    if constexpr (Shape::expands) {
      stored.begin(warpgroup_lanes, warpgroup_lanes);
      put_word(base + Shape::stored_ended, 0);
    }
  }

  /// By all lanes that copy. Says that no stored rows follow those before a use.
  PAGEDKV_DEVICE void end_stored(unsigned use, bool writes) const {
    for (auto i = 0U; i < Shape::stored_buffers; ++i) {
      stored.wait_until_empty(use + i);  // lanes that expand have looked at the flag for all earlier rows
    }
    if (writes) {
      put_word(base + Shape::stored_ended, 1);
    }
    stored.full(use).arrive();
  }

  [[nodiscard]] PAGEDKV_DEVICE bool stored_ended() const { return take_word(base + Shape::stored_ended) != 0; }

  [[nodiscard]] PAGEDKV_DEVICE unsigned queries_at(unsigned use) const {
    return base + Shape::queries + queries.buffer_of(use) * Shape::queries_bytes;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned columns_at(unsigned use) const {
    return base + Shape::of_columns + queries.buffer_of(use) * Shape::columns_bytes;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned piece_at(unsigned use) const {
    return base + Shape::pieces + use % Shape::piece_buffers * bytes_of_piece;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned keys_at(unsigned use) const {
    return base + Shape::keys + keys.buffer_of(use) * Shape::keys_bytes;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned stored_at(unsigned use) const {
    return base + Shape::stored + stored.buffer_of(use) * Shape::stored_bytes;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned key_scales_at(unsigned use) const {
    return base + Shape::scales + use % Shape::scale_buffers * 2 * Shape::scales_bytes;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned value_scales_at(unsigned use) const {
    return key_scales_at(use) + Shape::scales_bytes;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned values_at(unsigned use) const {
    return base + Shape::values + values.buffer_of(use) * Shape::values_bytes;
  }
};

/// Where the scale of a token is among those of a stage. Products give a lane four tokens of each sixteen, whose scales
/// are neighbours.
[[nodiscard]] PAGEDKV_DEVICE inline unsigned place_of_scale(unsigned token) {
  return token / 16 * 16 + token % 8 / 2 * 4 + token % 16 / 8 * 2 + token % 2;
}

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
