#pragma once

#include <pagedkv/attention/plan_layout.hpp>
#include <pagedkv/kernels/attention/lane_word.hpp>
#include <pagedkv/kernels/platform.hpp>
#include <pagedkv/storage/view.hpp>

#include <type_traits>

namespace pagedkv::kernels {

/// Tiles that a wave reads, up to one ahead, in registers: each lane reads the operands of its matrix instructions.
template <class Shape, class Matrix>
class own_tiles {
 public:
  // Registers of a lane for one tile, and for its sums of the output.
  static constexpr int tile_words = 2 * attention_tile * Shape::row_bytes / (4 * Matrix::lanes);
  static constexpr int output_sums = Matrix::columns * Shape::row_bytes / (Shape::number_bytes * Matrix::lanes);
  // Tiles in flight while one is processed. Beside many sums, registers do not suffice for two tiles.
  static constexpr int depth = tile_words + output_sums <= 64 ? 1 : 0;
  static constexpr int tile_bytes = 0;  // of shared memory
  static constexpr bool reads_whole = false;
  static constexpr int at_once = 1;

  PAGEDKV_DEVICE own_tiles(int /*first_byte*/, int /*wave*/, int lane) : lane_(lane) {}

  /// Starts to read a tile, of which rows `first` to `end` are visible. `row_start(row)` is the address of a row's
  /// keys, `scale_start(row)` that of its key scale. For an invisible row, the nearest visible row is read instead, and
  /// for a chunk past the end of a row, the row's first chunk: the result depends on these numbers anyway, so no stale
  /// NaN enters.
  template <class RowStart, class ScaleStart>
  PAGEDKV_DEVICE void read(const block_storage_view& view, RowStart row_start, ScaleStart scale_start, int first,
                           int end) {
    const auto lowest = first < 0 ? 0 : first;
    const auto highest = (end < attention_tile ? end : attention_tile) - 1;
    if (highest < lowest) {
      next_ = {};
      return;
    }
    const auto row_bytes = view.head_dim * Shape::number_bytes;
    const auto nearest = [=](int row) { return row < lowest ? lowest : (row > highest ? highest : row); };
    const auto within = [=](int at) { return at < row_bytes ? at : 0; };
    if constexpr (Shape::in_fragments) {
      read_fragments(
          view, [&](int row) { return row_start(nearest(row)); }, within);
    }
    PAGEDKV_UNROLL
    for (auto i = 0; i < Matrix::key_rows; ++i) {
      const auto* const from = row_start(nearest(Matrix::key_row(lane_, i)));
      PAGEDKV_UNROLL
      for (auto j = 0; j < Shape::key_chunks; ++j) {
        next_.keys[i][j] =
            read_chunk<4>(from + within((j * Matrix::key_parts + Matrix::key_part(lane_)) * vector_bytes));
      }
    }
    PAGEDKV_UNROLL
    for (auto i = 0; i < Matrix::value_rows; ++i) {
      const auto* const from = row_start(nearest(Matrix::value_row(lane_, i))) + view.value_offset;
      PAGEDKV_UNROLL
      for (auto j = 0; j < Shape::value_chunks; ++j) {
        next_.values[i][j] = read_chunk<value_words>(
            from + within((j * Matrix::value_parts + Matrix::value_part(lane_)) * Shape::value_bytes));
      }
    }
    if constexpr (Shape::scaled) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < Matrix::score_rows; ++i) {
        const auto* const from = scale_start(nearest(Matrix::score_row(lane_, i)));
        next_.key_scales[i] = load(reinterpret_cast<const float*>(from + view.key_scale_offset));
        next_.value_scales[i] = load(reinterpret_cast<const float*>(from + view.value_scale_offset));
      }
    }
  }

  PAGEDKV_DEVICE void end_tile() {}
  PAGEDKV_DEVICE void begin_tiles(int /*count*/) { begin_tile(); }
  PAGEDKV_DEVICE void release() const {}
  PAGEDKV_DEVICE void begin_tile() {
    if constexpr (depth != 0) {
      current_ = next_;
    }
  }

  /// Chunk `j` of the `i`-th key that this lane reads.
  PAGEDKV_DEVICE void take_key(int i, int j, registers<lane_word, 4>& words) const {
    take(current().keys[i][j], words);
  }
  PAGEDKV_DEVICE void take_value(int i, int j, registers<lane_word, 4>& words) const {
    take(current().values[i][j], words);
  }

  /// Fragments of 16 x 32 bytes: word i has four numbers of the lane's row i % 2 of keys, from dimension
  /// (2 * j + i / 2) * 16 + 4 * part on; or two numbers of two tokens, of rows i % 2 * 2 and on of those whose values
  /// a lane takes, from dimension (2 * j + i / 2) * 16 + 2 * part on.
  PAGEDKV_DEVICE void take_key_fragment(int /*n*/, int j, registers<lane_word, 4>& words) const {
    take(current().key_fragments[j], words);
  }
  PAGEDKV_DEVICE void take_value_fragment(int /*n*/, int j, registers<lane_word, 4>& words) const {
    take(current().value_fragments[j], words);
  }

  /// Scales of key and value of the `i`-th token whose scores this lane holds.
  [[nodiscard]] PAGEDKV_DEVICE vector<float, 2> scales_of(int /*n*/, int i) const {
    return {{current().key_scales[i], current().value_scales[i]}};
  }

 private:
  static constexpr int value_words = Shape::value_bytes / 4;
  static constexpr int fragments = Shape::row_bytes / 32;

  struct tile {
    registers<vector<lane_word, 4>, Matrix::key_rows, Shape::key_chunks> keys;
    registers<vector<lane_word, value_words>, Matrix::value_rows, Shape::value_chunks> values;
    registers<float, Shape::scaled ? Matrix::score_rows : 1> key_scales;
    registers<float, Shape::scaled ? Matrix::score_rows : 1> value_scales;
  };

  struct tile_in_fragments : tile {
    registers<vector<lane_word, 4>, fragments> key_fragments;
    registers<vector<lane_word, 4>, fragments> value_fragments;
  };

  using read_tile = std::conditional_t<Shape::in_fragments, tile_in_fragments, tile>;

  /// `row_start(row)`: the address of a row's keys; `within(at)`: a byte of a row instead of one past its end.
  template <class RowStart, class Within>
  PAGEDKV_DEVICE void read_fragments(const block_storage_view& view, RowStart row_start, Within within) {
    for (auto j = 0; j < fragments; ++j) {
      for (auto i = 0; i < 4; ++i) {
        const auto chunk = (j * 2 + i / 2) * 16;
        const auto* const key = row_start(Matrix::key_row(lane_, i % 2)) + within(chunk) + Matrix::key_part(lane_) * 4;
        next_.key_fragments[j].values[i] = load(reinterpret_cast<const lane_word*>(key));
        const auto pair_of = [&](int row) {
          const auto* const value = row_start(Matrix::value_row(lane_, i % 2 * 2 + row)) + view.value_offset +
                                    within(chunk) + Matrix::value_part(lane_) * 2;
          return lane_word{load(reinterpret_cast<const std::uint16_t*>(value))};
        };
        next_.value_fragments[j].values[i] = pair_of(0) | pair_of(1) << 16;
      }
    }
  }

  [[nodiscard]] PAGEDKV_DEVICE const read_tile& current() const {
    if constexpr (depth != 0) {
      return current_;
    } else {
      return next_;
    }
  }

  template <int N>
  [[nodiscard]] static PAGEDKV_DEVICE vector<lane_word, N> read_chunk(const std::byte* from) {
    return load_vector<N>(reinterpret_cast<const lane_word*>(from));
  }

  template <int N>
  static PAGEDKV_DEVICE void take(const vector<lane_word, N>& from, registers<lane_word, 4>& words) {
    PAGEDKV_UNROLL
    for (auto i = 0; i < N; ++i) {
      words[i] = from.values[i];
    }
  }

  int lane_;
  read_tile next_{};
  read_tile current_{};
};

}  // namespace pagedkv::kernels
