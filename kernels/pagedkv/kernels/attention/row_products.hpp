#pragma once

#include <pagedkv/kernels/attention/piece_queries.hpp>
#include <pagedkv/kernels/attention/tile_reader.hpp>

#include <type_traits>

namespace pagedkv::kernels {

/// The products of a wave whose lanes read rows of keys and values in chunks: `Tiles` times as many columns as the
/// matrix unit takes, of a task that `Waves` waves share. Values may be shorter than keys.
template <class Element, class Numbers, int HeadDim, int Tiles, class Matrix, int ValueDim = HeadDim, int Waves = 1>
class row_products {
  using shape = tile_shape<Element, HeadDim, Matrix>;
  using value_shape = tile_shape<Element, ValueDim, Matrix>;
  using storage = typename Element::storage;

 public:
  using element = Element;
  using numbers = Numbers;
  using number = typename Numbers::template of_products<Element>;
  using matrix = Matrix;
  using columns = wave_columns<Matrix, Tiles, Waves>;
  static constexpr int tiles = Tiles;
  static constexpr int value_numbers = ValueDim;

  /// The sums of one matrix of columns.
  using column_sums = registers<float, value_shape::value_chunks * value_shape::products, Matrix::sums>;

  piece_queries<Matrix, Tiles, shape::key_words> queries;

  explicit PAGEDKV_DEVICE row_products(const columns& of_wave) : queries(of_wave.lane), columns_(of_wave) {}

  /// Loads the queries of a piece. `factor`: of all scores.
  PAGEDKV_DEVICE void load_queries(const attention_call& call, const attention_piece& piece, float factor) {
    // Elsewhere, another way to read queries takes scalar registers that some kernels do not have.
    if constexpr (Matrix::columns == 8) {
      const auto as_words = converts_words ? call.queries.aligned && call.queries.type != number_type::float32
                                           : has_queries_of_products<Numbers, number>(call.queries);
      if (as_words) {
        load_short_queries(call, piece, factor);
        return;
      }
    }
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      registers<float, shape::key_chunks, shape::chunk> query;
      const auto column = columns_.query_of(call, piece, t);
      constexpr auto step = Matrix::key_parts * shape::chunk;
      read_query<Numbers>(call, column, Matrix::key_part(columns_.lane) * shape::chunk, step, query);
      queries.template convert<number>(t, query, factor);
    }
  }

  /// Products of keys and queries.
  template <class Tile>
  PAGEDKV_DEVICE void multiply_keys(const Tile& tile, int /*n*/, registers<float, Tiles, Matrix::sums>& scores) const {
    // Two sums, so that half of the products need not wait for the other half.
    registers<float, 2, Tiles, Matrix::sums> halves = {};
    PAGEDKV_UNROLL
    for (auto j = 0; j < shape::key_chunks; ++j) {
      constexpr auto num_words = 4 * words_of_stored<storage>;
      registers<lane_word, Matrix::key_rows, num_words> keys;
      PAGEDKV_UNROLL
      for (auto i = 0; i < Matrix::key_rows; ++i) {
        registers<lane_word, 4> stored;
        tile.take_key(i, j, stored);
        PAGEDKV_UNROLL
        for (auto k = 0; k < 4; ++k) {
          registers<lane_word, words_of_stored<storage>> expanded;
          expand<Element, number>(stored[k], expanded);
          PAGEDKV_UNROLL
          for (auto n = 0; n < words_of_stored<storage>; ++n) {
            keys[i][k * words_of_stored<storage> + n] = expanded[n];
          }
        }
      }
      registers<lane_word, Tiles, num_words> query_words;
      PAGEDKV_UNROLL
      for (auto t = 0; t < Tiles; ++t) {
        PAGEDKV_UNROLL
        for (auto group = 0; group < num_words / 4; ++group) {
          registers<lane_word, 4> words;
          queries.take(t, j * num_words / 4 + group, words);
          PAGEDKV_UNROLL
          for (auto i = 0; i < 4; ++i) {
            query_words[t][group * 4 + i] = words[i];
          }
        }
      }
      PAGEDKV_UNROLL
      for (auto k = 0; k < num_words / Matrix::key_words; ++k) {
        registers<lane_word, Matrix::key_rows, Matrix::key_words> of_keys;
        PAGEDKV_UNROLL
        for (auto i = 0; i < Matrix::key_rows; ++i) {
          PAGEDKV_UNROLL
          for (auto n = 0; n < Matrix::key_words; ++n) {
            of_keys[i][n] = keys[i][k * Matrix::key_words + n];
          }
        }
        PAGEDKV_UNROLL
        for (auto t = 0; t < Tiles; ++t) {
          registers<lane_word, Matrix::key_words> of_query;
          PAGEDKV_UNROLL
          for (auto n = 0; n < Matrix::key_words; ++n) {
            of_query[n] = query_words[t][k * Matrix::key_words + n];
          }
          Matrix::template multiply_keys<number>(halves[k % 2][t], of_keys, of_query);
        }
      }
    }
    for_each_score<Matrix, Tiles>([&](int t, int i) { scores[t][i] = halves[0][t][i] + halves[1][t][i]; });
  }

  /// Adds the products of values and weights of N matrices of columns.
  template <class Tile, std::size_t N>
  static PAGEDKV_DEVICE void multiply_values(const Tile& tile, int /*n*/, const typename Matrix::weights (&weights)[N],
                                             column_sums (&output)[N]) {
    PAGEDKV_UNROLL
    for (auto j = 0; j < value_shape::value_chunks; ++j) {
      registers<lane_word, Matrix::value_rows, 4> rows;
      PAGEDKV_UNROLL
      for (auto i = 0; i < Matrix::value_rows; ++i) {
        tile.take_value(i, j, rows[i]);
      }
      registers<lane_word, value_shape::value_chunk, Matrix::value_rows / 2> pairs;
      PAGEDKV_UNROLL
      for (auto i = 0; i < Matrix::value_rows / 2; ++i) {
        PAGEDKV_UNROLL
        for (auto k = 0; k < value_shape::value_bytes / 4; ++k) {
          registers<lane_word, numbers_per_word<storage>> of_word;
          pair_rows<Element, number>(rows[2 * i][k], rows[2 * i + 1][k], of_word);
          PAGEDKV_UNROLL
          for (auto n = 0; n < numbers_per_word<storage>; ++n) {
            pairs[k * numbers_per_word<storage> + n][i] = of_word[n];
          }
        }
      }
      PAGEDKV_UNROLL
      for (auto p = 0; p < value_shape::products; ++p) {
        registers<lane_word, Matrix::value_dims, Matrix::value_rows / 2> of_values;
        PAGEDKV_UNROLL
        for (auto d = 0; d < Matrix::value_dims; ++d) {
          PAGEDKV_UNROLL
          for (auto i = 0; i < Matrix::value_rows / 2; ++i) {
            of_values[d][i] = pairs[p * Matrix::value_dims + d][i];
          }
        }
        PAGEDKV_UNROLL
        for (auto t = std::size_t{0}; t < N; ++t) {
          Matrix::template multiply_values<number>(output[t][j * value_shape::products + p], of_values, weights[t]);
        }
      }
    }
  }

  /// Calls `put(first dimension, numbers)` for each chunk of a column's output that a lane holds.
  template <class Put>
  static PAGEDKV_DEVICE void for_each_chunk(const column_sums& output, int lane, int c, Put put) {
    PAGEDKV_UNROLL
    for (auto j = 0; j < value_shape::value_chunks; ++j) {
      PAGEDKV_UNROLL
      for (auto part = 0; part < Matrix::output_parts; ++part) {
        const auto first = (j * Matrix::value_parts + Matrix::output_part(lane, part)) * value_shape::value_chunk;
        auto chunk = vector<float, value_shape::value_chunk>{};
        PAGEDKV_UNROLL
        for (auto dim = 0; dim < value_shape::value_chunk; ++dim) {
          chunk.values[dim] =
              output[j * value_shape::products + Matrix::output_product(dim)][Matrix::output_sum(dim, part, c)];
        }
        put(first, chunk);
      }
    }
  }

 private:
  /// Whether queries of 16 bits are converted from words. Over elements of 16 bits they are seldom converted, and the
  /// instructions for it make short sequences 3 % slower.
  static constexpr bool converts_words = sizeof(storage) == 1;

  static constexpr int vectors_of_chunk = shape::chunk / 8;

  /// Queries of 16-bit numbers, of any lengths that are multiples of 16 bytes. All reads are issued before the first is
  /// used.
  PAGEDKV_DEVICE void load_short_queries(const attention_call& call, const attention_piece& piece, float factor) {
    registers<vector<lane_word, 4>, Tiles, shape::key_chunks * vectors_of_chunk> stored;
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      const auto first_of = [&](int i) {
        const auto chunk = i / vectors_of_chunk * Matrix::key_parts + Matrix::key_part(columns_.lane);
        return chunk * shape::chunk + i % vectors_of_chunk * 8;
      };
      read_query_words(call, columns_.query_of(call, piece, t), first_of, stored[t]);
    }
    const auto of_products = !converts_words || has_queries_of_products<Numbers, number>(call.queries);
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      if (of_products) {
        keep_query(t, stored[t], factor);
      } else {
        using other = std::conditional_t<std::is_same_v<number, typename Numbers::brain>, typename Numbers::half,
                                         typename Numbers::brain>;
        registers<float, shape::key_chunks, shape::chunk> query;
        decode_query_words<other>(stored[t], query);
        queries.template convert<number>(t, query, factor);
      }
    }
  }

  /// Keeps numbers of products as they are.
  template <std::size_t Count>
  PAGEDKV_DEVICE void keep_query(int t, const vector<lane_word, 4> (&stored)[Count], float factor) {
    PAGEDKV_UNROLL
    for (auto i = 0; i < static_cast<int>(Count); ++i) {
      const auto& of_chunk = stored[i].values;
      queries.put(t, i, {of_chunk[0], of_chunk[1], of_chunk[2], of_chunk[3]});
    }
    PAGEDKV_UNROLL
    for (auto c = 0; c < Matrix::score_columns; ++c) {
      queries.factors[t][c] = factor;
    }
  }

  columns columns_;
};

}  // namespace pagedkv::kernels
