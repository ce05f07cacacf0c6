#pragma once

#include <pagedkv/kernels/attention/lane_maps.hpp>
#include <pagedkv/kernels/attention/result.hpp>

namespace pagedkv::kernels {

/// The columns of a wave: `Tiles` matrices of a task that `Waves` waves share.
template <class Matrix, int Tiles, int Waves>
struct wave_columns {
  static constexpr int of_task = Waves * Tiles * Matrix::columns;

  int lane;
  int wave;

  /// Of the t-th matrix, among those of the task.
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t first(int t) const {
    const auto first = t * Matrix::columns;
    return Waves > 1 ? wave * Tiles * Matrix::columns + first : first;
  }

  /// The c-th column of the t-th matrix whose scores this lane holds.
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t of_score(int t, int c) const {
    return first(t) + Matrix::score_column(lane, c);
  }

  /// A wave that has its tasks alone never reads shared prefixes.
  [[nodiscard]] static PAGEDKV_DEVICE query_column find(const attention_call& call, const attention_piece& piece,
                                                        std::int32_t column) {
    if constexpr (Waves > 1) {
      return find_shared_column(call, piece.row, piece.task, column, of_task);
    } else {
      return find_column(call, piece.row, piece.task, column, of_task);
    }
  }

  /// The query of the t-th matrix of which this lane holds a part.
  [[nodiscard]] PAGEDKV_DEVICE query_column query_of(const attention_call& call, const attention_piece& piece,
                                                     int t) const {
    return find(call, piece, first(t) + Matrix::query_column(lane));
  }
};

/// Calls `use(matrix, sum)` for each of a lane's scores.
template <class Matrix, int Tiles, class Use>
PAGEDKV_INLINED_DEVICE void for_each_score(Use use) {
  PAGEDKV_UNROLL
  for (auto t = 0; t < Tiles; ++t) {
    PAGEDKV_UNROLL
    for (auto i = 0; i < Matrix::sums; ++i) {
      use(t, i);
    }
  }
}

/// Reads words of a query of 16-bit numbers, `N` each from number `first_of(i)` on; zeros past the head dimension, or
/// for a missing query.
template <int N, std::size_t Count, class FirstOf>
PAGEDKV_DEVICE void read_query_words(const attention_call& call, const query_column& query, FirstOf first_of,
                                     vector<lane_word, N> (&words)[Count]) {
  const auto& rows = call.queries;
  const auto start = query.exists() ? query.token * rows.token_stride + query.head * rows.head_stride : std::int64_t{0};
  const auto* const from = static_cast<const std::uint16_t*>(rows.data) + start;
  PAGEDKV_UNROLL
  for (auto i = 0; i < static_cast<int>(Count); ++i) {
    const auto first = first_of(i);
    words[i] = {};
    if (query.exists() && first < call.view.head_dim) {
      words[i] = load_vector<N>(reinterpret_cast<const lane_word*>(from + first));
    }
  }
}

/// The numbers of such words, in order.
template <class Stored, int N, std::size_t Count, std::size_t Runs, std::size_t Length>
PAGEDKV_DEVICE void decode_query_words(const vector<lane_word, N> (&words)[Count], float (&numbers)[Runs][Length]) {
  constexpr auto length = static_cast<int>(Length);
  PAGEDKV_UNROLL
  for (auto j = 0; j < static_cast<int>(Runs); ++j) {
    PAGEDKV_UNROLL
    for (auto i = 0; i < length; ++i) {
      const auto pair = (j * length + i) / 2;
      const auto word = words[pair / N].values[pair % N];
      numbers[j][i] = Stored::decode(static_cast<std::uint16_t>(i % 2 == 0 ? word : word >> 16), 1.0F);
    }
  }
}

/// The queries of a wave's columns as products take them, `Words` of each in a lane, and the factors of their scores.
template <class Matrix, int Tiles, int Words>
class piece_queries {
 public:
  registers<float, Tiles, Matrix::score_columns> factors;

  explicit PAGEDKV_DEVICE piece_queries(int lane) : lane_(lane) {}

  /// Four words of a query.
  PAGEDKV_DEVICE void put(int t, int group, const registers<lane_word, 4>& words) {
    PAGEDKV_UNROLL
    for (auto i = 0; i < 4; ++i) {
      words_[t][group * 4 + i] = words[i];
    }
  }
  PAGEDKV_DEVICE void take(int t, int group, registers<lane_word, 4>& words) const {
    PAGEDKV_UNROLL
    for (auto i = 0; i < 4; ++i) {
      words[i] = words_[t][group * 4 + i];
    }
  }

  /// Keeps a query in numbers of products, divided by the largest power of two in it: this keeps numbers within
  /// binary16 for any range of the queries.
  template <class Number, std::size_t Runs, std::size_t Length>
  PAGEDKV_DEVICE void convert(int t, const float (&numbers)[Runs][Length], float factor) {
    constexpr auto length = static_cast<int>(Length);
    auto largest = 0.0F;
    PAGEDKV_UNROLL
    for (auto j = 0; j < static_cast<int>(Runs); ++j) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < length; ++i) {
        largest = fmaxf(largest, fabsf(numbers[j][i]));
      }
    }
    largest = Matrix::reduce_parts(largest, [](float a, float b) { return fmaxf(a, b); });
    const auto exponent = static_cast<std::int32_t>(bits_of(largest) >> 23) - 127;
    const auto usual = exponent >= -100 && exponent <= 100 ? exponent : 0;
    const auto down = __builtin_bit_cast(float, (127 - usual) << 23);
    const auto up = __builtin_bit_cast(float, (127 + usual) << 23);
    PAGEDKV_UNROLL
    for (auto group = 0; group < Words / 4; ++group) {
      registers<lane_word, 4> words;
      PAGEDKV_UNROLL
      for (auto i = 0; i < 4; ++i) {
        const auto first = group * 8 + 2 * i;
        words[i] = pack<Number>(numbers[first / length][first % length] * down,
                                numbers[first / length][first % length + 1] * down);
      }
      put(t, group, words);
    }
    set_factor(t, up * factor);
  }

  /// Sets the factor of a query of which this lane holds a part.
  PAGEDKV_DEVICE void set_factor(int t, float of_query) {
    PAGEDKV_UNROLL
    for (auto c = 0; c < Matrix::score_columns; ++c) {
      factors[t][c] = Matrix::column_value(of_query, lane_, c);
    }
  }

 private:
  int lane_;
  registers<lane_word, Tiles, Words> words_;
};

}  // namespace pagedkv::kernels
