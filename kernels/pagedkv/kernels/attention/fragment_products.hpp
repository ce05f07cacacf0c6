#pragma once

#include <pagedkv/kernels/attention/piece_queries.hpp>
#include <pagedkv/kernels/attention/tile_reader.hpp>

#include <type_traits>

namespace pagedkv::kernels {

/// The products of a wave that takes keys and values of 8 bits as fragments of 16 x 32 bytes. Keys of int8 are
/// multiplied as they are stored, by the two bytes of queries of 16 bits.
template <class Element, class Numbers, int HeadDim, int Tiles, class Matrix, int Waves>
class fragment_products {
  static constexpr int fragments = HeadDim / 32;  // of a tile's keys, and of its values
  static constexpr int chunks = HeadDim / 16;     // of a row
  static constexpr bool multiplies_bytes = !has_halves<Element>;

 public:
  using element = Element;
  using numbers = Numbers;
  using number = typename Numbers::template of_products<Element>;
  using matrix = Matrix;
  using columns = wave_columns<Matrix, Tiles, Waves>;
  using column_sums = registers<float, chunks, Matrix::sums>;
  static constexpr int tiles = Tiles;
  static constexpr int value_numbers = HeadDim;

  piece_queries<Matrix, Tiles, HeadDim / 8> queries;

  explicit PAGEDKV_DEVICE fragment_products(const columns& of_wave) : queries(of_wave.lane), columns_(of_wave) {}

  /// Loads the queries of a piece. Of 16-bit rows, all reads are issued before the first is used.
  PAGEDKV_DEVICE void load_queries(const attention_call& call, const attention_piece& piece, float factor) {
    const auto first = Matrix::key_part(columns_.lane) * 4;
    registers<vector<lane_word, 2>, Tiles, chunks> stored = {};
    const auto as_words = call.queries.aligned && call.queries.type != number_type::float32;
    if (as_words) {
      PAGEDKV_UNROLL
      for (auto t = 0; t < Tiles; ++t) {
        read_query_words(
            call, columns_.query_of(call, piece, t), [&](int i) { return i * 16 + first; }, stored[t]);
      }
    }
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      registers<float, chunks, 4> query;
      if (!as_words) {
        read_query<Numbers>(call, columns_.query_of(call, piece, t), first, 16, query);
      } else if (call.queries.type == number_type::float16) {
        decode_query_words<typename Numbers::half>(stored[t], query);
      } else {
        decode_query_words<typename Numbers::brain>(stored[t], query);
      }
      if constexpr (multiplies_bytes) {
        keep_bytes(t, query, factor);
      } else {
        queries.template convert<number>(t, query, factor);
      }
    }
  }

  /// Products of the keys of tile `n` and queries.
  template <class Tile>
  PAGEDKV_DEVICE void multiply_keys(const Tile& tile, int n, registers<float, Tiles, Matrix::sums>& scores) const {
    // Two sums, so that half of the products need not wait for the other half; or of upper and of lower bytes.
    registers<std::conditional_t<multiplies_bytes, std::int32_t, float>, 2, Tiles, Matrix::sums> halves = {};
    PAGEDKV_UNROLL
    for (auto j = 0; j < fragments; ++j) {
      registers<lane_word, 4> keys;
      tile.take_key_fragment(n, j, keys);
      if constexpr (multiplies_bytes) {
        multiply_bytes(keys, j, halves);
      } else {
        multiply_halves(keys, j, halves);
      }
    }
    for_each_score<Matrix, Tiles>([&](int t, int i) {
      if constexpr (multiplies_bytes) {
        scores[t][i] = static_cast<float>(halves[0][t][i] * 256 + halves[1][t][i]);
      } else {
        scores[t][i] = halves[0][t][i] + halves[1][t][i];
      }
    });
  }

  /// Adds the products of the values of tile `n` and weights. A chunk of 16 numbers is a product: lanes have two
  /// neighbours of it.
  template <class Tile>
  static PAGEDKV_DEVICE void multiply_values(const Tile& tile, int n,
                                             const registers<typename Matrix::weights, Tiles>& weights,
                                             column_sums (&output)[std::size_t{Tiles}]) {
    PAGEDKV_UNROLL
    for (auto j = 0; j < fragments; ++j) {
      registers<lane_word, 4> stored;
      tile.take_value_fragment(n, j, stored);
      PAGEDKV_UNROLL
      for (auto chunk = 0; chunk < 2; ++chunk) {
        registers<lane_word, Matrix::value_dims, Matrix::value_rows / 2> of_values;
        PAGEDKV_UNROLL
        for (auto i = 0; i < 2; ++i) {
          registers<lane_word, 2> pairs;
          pair_rows<Element, number>(stored[chunk * 2 + i], pairs);
          of_values[0][i] = pairs[0];
          of_values[1][i] = pairs[1];
        }
        PAGEDKV_UNROLL
        for (auto t = 0; t < Tiles; ++t) {
          Matrix::template multiply_values<number>(output[t][j * 2 + chunk], of_values, weights[t]);
        }
      }
    }
  }

  /// Calls `put(first dimension, numbers)` for each pair of a column's output that a lane holds.
  template <class Put>
  static PAGEDKV_DEVICE void for_each_chunk(const column_sums& output, int lane, int c, Put put) {
    PAGEDKV_UNROLL
    for (auto chunk = 0; chunk < chunks; ++chunk) {
      put(chunk * 16 + Matrix::value_part(lane) * 2, vector<float, 2>{{output[chunk][c], output[chunk][2 + c]}});
    }
  }

 private:
  PAGEDKV_DEVICE void multiply_bytes(const registers<lane_word, 4>& keys, int j,
                                     registers<std::int32_t, 2, Tiles, Matrix::sums>& sums) const {
    const registers<lane_word, 2, 2> of_keys = {{keys[0], keys[2]}, {keys[1], keys[3]}};
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      registers<lane_word, 4> query;
      queries.take(t, j, query);
      Matrix::template multiply_bytes<true>(sums[0][t], of_keys, {query[0], query[1]});
      Matrix::template multiply_bytes<false>(sums[1][t], of_keys, {query[2], query[3]});
    }
  }

  PAGEDKV_DEVICE void multiply_halves(const registers<lane_word, 4>& keys, int j,
                                      registers<float, 2, Tiles, Matrix::sums>& halves) const {
    PAGEDKV_UNROLL
    for (auto chunk = 0; chunk < 2; ++chunk) {
      registers<lane_word, Matrix::key_rows, Matrix::key_words> of_keys;
      PAGEDKV_UNROLL
      for (auto i = 0; i < Matrix::key_rows; ++i) {
        expand<Element, number>(keys[chunk * 2 + i], of_keys[i]);
      }
      PAGEDKV_UNROLL
      for (auto t = 0; t < Tiles; ++t) {
        registers<lane_word, 4> query;
        queries.take(t, j, query);
        Matrix::template multiply_keys<number>(halves[chunk][t], of_keys, {query[chunk * 2], query[chunk * 2 + 1]});
      }
    }
  }

  /// Keeps a query as whole numbers of 16 bits times a power of two: for each fragment the upper bytes of eight numbers
  /// in two words, then the lower ones. Numbers of bfloat16 down to a 128th of the largest stay as they are.
  PAGEDKV_DEVICE void keep_bytes(int t, const registers<float, chunks, 4>& query, float factor) {
    auto largest = lane_word{0};  // as integers, numbers without a sign have the same order, and NaN is the largest
    PAGEDKV_UNROLL
    for (auto j = 0; j < chunks; ++j) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < 4; ++i) {
        const auto magnitude = bits_of(fabsf(query[j][i]));
        largest = magnitude > largest ? magnitude : largest;
      }
    }
    PAGEDKV_UNROLL
    for (auto distance = 1; distance < Matrix::key_parts; distance *= 2) {
      const auto other = shuffle_xor(largest, distance, Matrix::lanes);
      largest = other > largest ? other : largest;
    }
    constexpr auto number_bits = 14;
    const auto exponent = static_cast<std::int32_t>(largest >> 23);
    const auto usual = exponent < 27 ? 27 : (exponent > 227 ? 227 : exponent);
    const auto down = __builtin_bit_cast(float, (2 * 127 + number_bits - usual) << 23);
    const auto up = exponent == 255 ? NAN : __builtin_bit_cast(float, (usual - number_bits) << 23);
    PAGEDKV_UNROLL
    for (auto j = 0; j < fragments; ++j) {
      registers<lane_word, 4> words;
      PAGEDKV_UNROLL
      for (auto half = 0; half < 2; ++half) {
        registers<lane_word, 4> whole;
        PAGEDKV_UNROLL
        for (auto i = 0; i < 4; ++i) {
          // Beside this number, neighbours in float32 are one apart, so its lower bits are those of the integer.
          constexpr auto integers = 0x1.8p23F;
          whole[i] = bits_of(fminf(fmaf(query[j * 2 + half][i], down, integers), integers + 32767.0F));
        }
        const auto first = permute_bytes<0x5140>(whole[0], whole[1]);
        const auto second = permute_bytes<0x5140>(whole[2], whole[3]);
        words[half] = permute_bytes<0x7632>(first, second);
        words[2 + half] = permute_bytes<0x5410>(first, second);
      }
      queries.put(t, j, words);
    }
    queries.set_factor(t, up * factor);
  }

  columns columns_;
};

}  // namespace pagedkv::kernels
