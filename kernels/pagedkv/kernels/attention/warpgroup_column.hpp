#pragma once

// Pieces and columns that warpgroups pass in shared memory, for code compiled for sm_90a. Empty for other compilers.

#include <pagedkv/kernels/attention/warpgroup_nvidia.hpp>

#if defined(__CUDACC__) && !defined(__HIPCC__)

  #include <pagedkv/kernels/attention/scores.hpp>
  #include <pagedkv/kernels/attention/walk.hpp>

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

#endif
