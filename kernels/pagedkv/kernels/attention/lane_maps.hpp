#pragma once

#include <pagedkv/kernels/attention/lane_word.hpp>
#include <pagedkv/kernels/platform.hpp>

#include <cstddef>
#include <cstdint>

// Maps from lanes to elements of matrix products. Rows are tokens or dimensions and columns are queries, so that a lane
// holds scores where the next product takes probabilities, or one exchange away. The order of dimensions in a product
// of queries and keys is free as long as both use the same: a lane reads neighbouring numbers and uses them in
// successive products. A platform's `Unit` has `multiply_16x8`, `multiply_bytes_16x8` and `transpose_8x8`, or
// `multiply_16x16`, or `multiply_16x16_halves` and `sum_row`. Its `available` is false where code is compiled for a
// device without them.

namespace pagedkv::kernels {

/// Two numbers, rounded and packed, the first in the lower half. Each platform has its own version.
template <class Number>
[[nodiscard]] PAGEDKV_DEVICE lane_word pack(float first, float second);

/// The products of two pairs of bfloat16, and a third pair added, rounded once; NVIDIA's, and the host's. Subnormal
/// numbers stay as they are.
template <class Number>
[[nodiscard]] PAGEDKV_DEVICE lane_word multiply_add_pairs(lane_word a, lane_word b, lane_word c);

/// mma.m16n8k16 of PTX: 32 lanes, 8 columns.
template <class Unit>
struct matrix_wave32 {
  using unit = Unit;
  static constexpr int lanes = 32;
  static constexpr int columns = 8;
  static constexpr int largest_dim = 256;  // for which the registers of a lane suffice
  static constexpr int key_rows = 2;       // tokens of a tile whose keys a lane reads
  static constexpr int key_parts = 4;      // lanes that share one key
  static constexpr int key_words = 2;      // words of each key in one product
  static constexpr int value_rows = 4;     // tokens of a tile whose values a lane reads
  static constexpr int value_parts = 8;    // lanes that share one value
  static constexpr int value_dims = 2;     // dimensions per lane in one product
  static constexpr int score_rows = 2;     // tokens of a tile whose scores a lane holds
  static constexpr int score_columns = 2;  // queries whose scores a lane holds
  static constexpr int output_parts = 1;   // parts of a value in whose output a lane has a share
  static constexpr int sums = score_rows * score_columns;

  [[nodiscard]] static PAGEDKV_DEVICE int key_row(int lane, int i) { return lane / 4 + 8 * i; }
  [[nodiscard]] static PAGEDKV_DEVICE int key_part(int lane) { return lane % 4; }
  [[nodiscard]] static PAGEDKV_DEVICE int query_column(int lane) { return lane / 4; }
  [[nodiscard]] static PAGEDKV_DEVICE int value_row(int lane, int i) { return lane % 4 * 2 + i % 2 + i / 2 * 8; }
  [[nodiscard]] static PAGEDKV_DEVICE int value_part(int lane) { return lane / 4; }
  [[nodiscard]] static PAGEDKV_DEVICE int score_row(int lane, int i) { return lane / 4 + 8 * i; }
  [[nodiscard]] static PAGEDKV_DEVICE int score_column(int lane, int i) { return lane % 4 * 2 + i; }
  [[nodiscard]] static PAGEDKV_DEVICE int output_part(int lane, int /*i*/) { return lane / 4; }

  /// The product, and the sum in it, that holds dimension `dim` of a lane's chunk for part `i` and column `c`.
  [[nodiscard]] static constexpr PAGEDKV_DEVICE int output_product(int dim) { return dim / 2; }
  [[nodiscard]] static constexpr PAGEDKV_DEVICE int output_sum(int dim, int /*i*/, int c) { return dim % 2 * 2 + c; }

  /// Combines over the lanes that hold scores of the same columns.
  template <class Combine>
  [[nodiscard]] static PAGEDKV_DEVICE float reduce_rows(float value, Combine combine) {
    for (auto distance = 4; distance < lanes; distance *= 2) {
      value = combine(value, shuffle_xor(value, distance, lanes));
    }
    return value;
  }

  /// Combines over the lanes that hold parts of the same query.
  template <class Combine>
  [[nodiscard]] static PAGEDKV_DEVICE float reduce_parts(float value, Combine combine) {
    for (auto distance = 1; distance < key_parts; distance *= 2) {
      value = combine(value, shuffle_xor(value, distance, lanes));
    }
    return value;
  }

  /// Moves a number from the lanes that hold parts of a query to the lanes that hold its scores.
  [[nodiscard]] static PAGEDKV_DEVICE float column_value(float of_query, int lane, int i) {
    return shuffle(of_query, score_column(lane, i) * 4, lanes);
  }

  /// Adds the products of keys and a query. `keys[i]` are words of key row i.
  template <class Number>
  static PAGEDKV_DEVICE void multiply_keys(float (&into)[sums], const lane_word (&keys)[key_rows][key_words],
                                           const lane_word (&query)[key_words]) {
    Unit::template multiply_16x8<Number>(into, {keys[0][0], keys[1][0], keys[0][1], keys[1][1]}, {query[0], query[1]});
  }

  /// The same of bytes, four in a word; `Signed`: those of the query.
  template <bool Signed>
  static PAGEDKV_DEVICE void multiply_bytes(std::int32_t (&into)[sums], const lane_word (&keys)[key_rows][key_words],
                                            const lane_word (&query)[key_words]) {
    Unit::template multiply_bytes_16x8<Signed>(into, {keys[0][0], keys[1][0], keys[0][1], keys[1][1]},
                                               {query[0], query[1]});
  }

  /// Probabilities in the form that `multiply_values` takes.
  struct weights {
    lane_word pairs[2];
  };

  template <class Number>
  [[nodiscard]] static PAGEDKV_DEVICE weights make_weights(const float (&probabilities)[sums]) {
    return {{Unit::transpose_8x8(pack<Number>(probabilities[0], probabilities[1])),
             Unit::transpose_8x8(pack<Number>(probabilities[2], probabilities[3]))}};
  }

  /// `values[d]`: pairs of value rows, for dimension d.
  template <class Number>
  static PAGEDKV_DEVICE void multiply_values(float (&into)[sums], const lane_word (&values)[value_dims][value_rows / 2],
                                             const weights& by) {
    Unit::template multiply_16x8<Number>(into, {values[0][0], values[1][0], values[0][1], values[1][1]},
                                         {by.pairs[0], by.pairs[1]});
  }
};

/// Members that all products of 16 x 16 x 16 share: 16 neighbouring lanes have a column each. Meanings as above.
template <class Unit>
struct matrix_16_columns {
  using unit = Unit;
  static constexpr int columns = 16;
  static constexpr int value_parts = 16;
  static constexpr int score_columns = 1;

  [[nodiscard]] static PAGEDKV_DEVICE int key_row(int lane, int /*i*/) { return lane % 16; }
  [[nodiscard]] static PAGEDKV_DEVICE int key_part(int lane) { return lane / 16; }
  [[nodiscard]] static PAGEDKV_DEVICE int query_column(int lane) { return lane % 16; }
  [[nodiscard]] static PAGEDKV_DEVICE int value_part(int lane) { return lane % 16; }
  [[nodiscard]] static PAGEDKV_DEVICE int score_column(int lane, int /*i*/) { return lane % 16; }
  [[nodiscard]] static constexpr PAGEDKV_DEVICE int output_product(int dim) { return dim; }
  [[nodiscard]] static constexpr PAGEDKV_DEVICE int output_sum(int /*dim*/, int i, int /*c*/) { return i; }

  [[nodiscard]] static PAGEDKV_DEVICE float column_value(float of_query, int /*lane*/, int /*i*/) { return of_query; }
};

/// v_mfma_f32_16x16x16 of CDNA: 64 lanes, 16 columns. Members as above.
template <class Unit>
struct matrix_wave64 : matrix_16_columns<Unit> {
  static constexpr int lanes = 64;
  static constexpr int largest_dim = 256;
  static constexpr int key_rows = 1;
  static constexpr int key_parts = 4;
  static constexpr int key_words = 2;
  static constexpr int value_rows = 4;
  static constexpr int value_dims = 1;
  static constexpr int score_rows = 4;
  static constexpr int output_parts = 4;
  static constexpr int sums = score_rows;

  [[nodiscard]] static PAGEDKV_DEVICE int value_row(int lane, int i) { return lane / 16 * 4 + i; }
  [[nodiscard]] static PAGEDKV_DEVICE int score_row(int lane, int i) { return lane / 16 * 4 + i; }
  [[nodiscard]] static PAGEDKV_DEVICE int output_part(int lane, int i) { return lane / 16 * 4 + i; }

  template <class Combine>
  [[nodiscard]] static PAGEDKV_DEVICE float reduce_rows(float value, Combine combine) {
    for (auto distance = 16; distance < lanes; distance *= 2) {
      value = combine(value, shuffle_xor(value, distance, lanes));
    }
    return value;
  }

  template <class Combine>
  [[nodiscard]] static PAGEDKV_DEVICE float reduce_parts(float value, Combine combine) {
    return reduce_rows(value, combine);
  }

  template <class Number>
  static PAGEDKV_DEVICE void multiply_keys(float (&into)[sums], const lane_word (&keys)[key_rows][key_words],
                                           const lane_word (&query)[key_words]) {
    Unit::template multiply_16x16<Number>(into, {keys[0][0], keys[0][1]}, {query[0], query[1]});
  }

  struct weights {
    lane_word pairs[2];
  };

  template <class Number>
  [[nodiscard]] static PAGEDKV_DEVICE weights make_weights(const float (&probabilities)[sums]) {
    return {{pack<Number>(probabilities[0], probabilities[1]), pack<Number>(probabilities[2], probabilities[3])}};
  }

  template <class Number>
  static PAGEDKV_DEVICE void multiply_values(float (&into)[sums],
                                             const lane_word (&values)[value_dims][value_rows / 2],
                                             const weights& by) {
    Unit::template multiply_16x16<Number>(into, {values[0][0], values[0][1]}, {by.pairs[0], by.pairs[1]});
  }
};

/// wmma_f32_16x16x16 of RDNA: 32 lanes, 16 columns. Members as above. `Unit::sum_row(lane, i)` is the row of a lane's
/// i-th sum, and so the token of its i-th probability.
template <class Unit>
struct matrix_wave32_wide : matrix_16_columns<Unit> {
  static constexpr int lanes = 32;
  static constexpr int largest_dim = 128;
  static constexpr int key_rows = 1;
  static constexpr int key_parts = 2;
  static constexpr int key_words = 4;
  static constexpr int value_rows = 8;
  static constexpr int value_dims = 1;
  static constexpr int score_rows = 8;
  static constexpr int output_parts = 8;
  static constexpr int sums = score_rows;

  [[nodiscard]] static PAGEDKV_DEVICE int value_row(int lane, int i) { return Unit::sum_row(lane, i); }
  [[nodiscard]] static PAGEDKV_DEVICE int score_row(int lane, int i) { return Unit::sum_row(lane, i); }
  [[nodiscard]] static PAGEDKV_DEVICE int output_part(int lane, int i) { return Unit::sum_row(lane, i); }

  template <class Combine>
  [[nodiscard]] static PAGEDKV_DEVICE float reduce_rows(float value, Combine combine) {
    return combine(value, shuffle_xor(value, 16, lanes));
  }

  template <class Combine>
  [[nodiscard]] static PAGEDKV_DEVICE float reduce_parts(float value, Combine combine) {
    return reduce_rows(value, combine);
  }

  template <class Number>
  static PAGEDKV_DEVICE void multiply_keys(float (&into)[sums], const lane_word (&keys)[key_rows][key_words],
                                           const lane_word (&query)[key_words]) {
    Unit::template multiply_16x16_halves<Number>(into, keys[0], query);
  }

  struct weights {
    lane_word pairs[4];
  };

  template <class Number>
  [[nodiscard]] static PAGEDKV_DEVICE weights make_weights(const float (&probabilities)[sums]) {
    return {{pack<Number>(probabilities[0], probabilities[1]), pack<Number>(probabilities[2], probabilities[3]),
             pack<Number>(probabilities[4], probabilities[5]), pack<Number>(probabilities[6], probabilities[7])}};
  }

  template <class Number>
  static PAGEDKV_DEVICE void multiply_values(float (&into)[sums],
                                             const lane_word (&values)[value_dims][value_rows / 2],
                                             const weights& by) {
    Unit::template multiply_16x16_halves<Number>(into, values[0], by.pairs);
  }
};

}  // namespace pagedkv::kernels
