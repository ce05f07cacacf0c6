#pragma once

#include <pagedkv/kernels/attention/lane_maps.hpp>
#include <pagedkv/kernels/attention/result.hpp>
#include <pagedkv/kernels/attention/tile_reader.hpp>

#include <type_traits>

namespace pagedkv::kernels {

/// The state of a wave for one piece, with `Tiles` times as many columns as the matrix unit takes. `Waves` waves share
/// a task, each with its own columns; more than one also know tree masks. Values may be shorter than keys.
template <class Element, class Numbers, int HeadDim, int Tiles, class Matrix, int ValueDim = HeadDim, int Waves = 1>
class piece_state {
  using shape = tile_shape<Element, HeadDim, Matrix>;
  using value_shape = tile_shape<Element, ValueDim, Matrix>;
  using storage = typename Element::storage;
  using Number = typename Numbers::template of_products<Element>;

 public:
  static constexpr int columns = Waves * Tiles * Matrix::columns;  // of a task

  /// Queries lie in shared memory for the largest dimension: registers do not suffice for two matrices side by side.
  using queries = lane_queries<Tiles, shape::key_words, Matrix::lanes, (Waves == 1 && Tiles > 1 && HeadDim > 128)>;

  /// `first_query_byte`: of the wave's `queries::wave_bytes` of shared memory.
  PAGEDKV_DEVICE piece_state(const attention_call& call, int lane, int wave = 0, std::size_t first_query_byte = 0)
      : call_(call), lane_(lane), wave_(wave), query_(first_query_byte, lane) {}

  PAGEDKV_DEVICE void begin(const attention_walk& walk) {
    const auto& call = read_again(call_);
    auto factor = call.soft_cap > 0.0F ? call.scale : call.scale * log2_e;
    factor *= static_key_scale<Element>(call, walk);
    load_queries(call, walk, factor);
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto c = 0; c < Matrix::score_columns; ++c) {
        const auto column = first_column(t) + Matrix::score_column(lane_, c);
        rules_[t][c] = score_rule::of(call, find(call, walk, column));
        if constexpr (Waves > 1) {
          branches_[t][c] = hidden_branches::of(call, walk.row, find(call, walk, column));
        }
        reference_[t][c] = -INFINITY;
        sum_[t][c] = 0.0F;
      }
      PAGEDKV_UNROLL
      for (auto i = 0; i < value_shape::value_chunks * value_shape::products; ++i) {
        PAGEDKV_UNROLL
        for (auto j = 0; j < Matrix::sums; ++j) {
          output_[t][i][j] = 0.0F;
        }
      }
    }
  }

  /// Whether a column of this wave sees a token of the tile.
  [[nodiscard]] PAGEDKV_DEVICE bool sees(std::int32_t first_token) const {
    auto seen = false;
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto c = 0; c < Matrix::score_columns; ++c) {
        seen = seen ||
               (first_token <= rules_[t][c].last_token && first_token + attention_tile > rules_[t][c].first_token);
      }
    }
    return any(seen) != 0;
  }

  template <class ReadAhead>
  PAGEDKV_INLINED_DEVICE void add_tile(const ReadAhead& tile, std::int32_t first_token) {
    registers<float, Tiles, Matrix::sums> scores;
    multiply_keys(tile, scores);
    registers<float, Matrix::score_rows> weight;  // factor of the values
    registers<float, Matrix::score_rows> bias;    // its logarithm
    PAGEDKV_UNROLL
    for (auto r = 0; r < Matrix::score_rows; ++r) {
      weight[r] = 1.0F;
      bias[r] = 0.0F;
      if constexpr (Element::scaled) {
        weight[r] = tile.value_scale(r);
        bias[r] = fmaxf(binary_logarithm(weight[r]), least_bias);
        const auto key_scale = tile.key_scale(r);
        PAGEDKV_UNROLL
        for (auto t = 0; t < Tiles; ++t) {
          PAGEDKV_UNROLL
          for (auto c = 0; c < Matrix::score_columns; ++c) {
            scores[t][r * Matrix::score_columns + c] *= key_scale * factor_[t][c];
          }
        }
      } else {
        PAGEDKV_UNROLL
        for (auto t = 0; t < Tiles; ++t) {
          PAGEDKV_UNROLL
          for (auto c = 0; c < Matrix::score_columns; ++c) {
            scores[t][r * Matrix::score_columns + c] *= factor_[t][c];
          }
        }
      }
    }
    apply_options(scores, first_token);
    if constexpr (Waves > 1) {
      if (call_.tree_masks != nullptr) {
        apply_tree_masks(scores, first_token);
      }
    }
    auto grows = false;
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < Matrix::sums; ++i) {
        const auto c = i % Matrix::score_columns;
        const auto r = i / Matrix::score_columns;
        const auto token = first_token + Matrix::score_row(lane_, r);
        scores[t][i] = rules_[t][c].hide(scores[t][i], token);
        grows = grows || scores[t][i] + bias[r] > reference_[t][c] + headroom;
      }
    }
    if (any(grows)) {
      raise_reference(scores, bias);
    }
    registers<typename Matrix::weights, Tiles> weights;
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      registers<float, Matrix::sums> probabilities;
      PAGEDKV_UNROLL
      for (auto i = 0; i < Matrix::sums; ++i) {
        const auto c = i % Matrix::score_columns;
        const auto reference = reference_[t][c] == -INFINITY ? 0.0F : reference_[t][c];
        const auto probability = power_of_two(scores[t][i] - reference);
        sum_[t][c] += probability;
        // A row that was not read has undefined scale bits; its probabilities are zero.
        probabilities[i] =
            Element::scaled && probability == 0.0F ? 0.0F : probability * weight[i / Matrix::score_columns];
      }
      weights[t] = Matrix::template make_weights<Number>(probabilities);
    }
    multiply_values(tile, weights, output_);
  }

  PAGEDKV_DEVICE void finish(const attention_walk& walk) {
    const auto& call = read_again(call_);
    scale_values(call, walk);
    auto add = [](float a, float b) { return a + b; };
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto c = 0; c < Matrix::score_columns; ++c) {
        const auto total = Matrix::reduce_rows(sum_[t][c], add);
        const auto column = first_column(t) + Matrix::score_column(lane_, c);
        const auto query = find(call, walk, column);
        if (query.exists()) {
          const auto writer = Matrix::score_row(lane_, 0) == 0;
          if (walk.whole) {
            const auto ended = end_softmax(call, query, reference_[t][c], total);
            if (writer) {
              write_log_sum_exp(call, query, ended);
            }
            write(output_[t], c, [&](std::int32_t dim, const auto& numbers) {
              write_output<Numbers>(call, query, dim, numbers, ended.factor);
            });
          } else {
            const auto at = static_cast<std::int64_t>(walk.partial) * columns + column;
            if (writer) {
              write_partial_sum(call, at, reference_[t][c], total);
            }
            write(output_[t], c,
                  [&](std::int32_t dim, const auto& numbers) { write_partial(call, at, dim, numbers); });
          }
        }
      }
    }
  }

  /// Finishes a piece through shared memory of the wave, `bytes_of_matrix` of it: a loop over columns, because the
  /// instructions of a piece's end are seldom at hand, and reading them takes longer than running them.
  PAGEDKV_DEVICE void finish(const attention_walk& walk, const shared_span<float>& room) {
    const auto& call = read_again(call_);
    scale_values(call, walk);
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      meet_wave();
      put_numbers(t, room, 0);
      meet_wave();
      const auto index = lane_ % Matrix::columns;
      const auto sums = sums_of_column(t, index);
      const auto place = place_of_column(call, walk, first_column(t) + index, sums, lane_ == index);
      PAGEDKV_NO_UNROLL
      for (auto column = 0; column < Matrix::columns; ++column) {
        write_column(call, walk, of_lane(place, column),
                     [&](std::int32_t dim) { return load_shared_vector<4>(room, place_of_number(column, dim)); });
      }
    }
  }

  /// Bytes of shared memory for the numbers of a matrix of columns, and for those of a wave with their sums.
  static constexpr int value_numbers = value_shape::row_bytes / value_shape::number_bytes;
  static constexpr int bytes_of_matrix = Matrix::columns * value_numbers * 4;
  static constexpr int bytes_of_state = Tiles * bytes_of_matrix + columns * 8;

  /// Puts what `finish_joined` takes into shared memory, `bytes_of_state` of it.
  PAGEDKV_DEVICE void put_state(const attention_walk& walk, const shared_span<float>& to) {
    scale_values(read_again(call_), walk);
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      put_numbers(t, to, t * Matrix::columns);
      const auto index = lane_ % Matrix::columns;
      const auto sums = sums_of_column(t, index);
      if (lane_ == index) {
        const auto at = sums_at(t * Matrix::columns + index);
        to[at] = sums.reference;
        to[at + 1] = sums.sum;
      }
    }
  }

  /// Writes columns `first`, `first + num_waves` and so on of a task's piece, whose parts as many waves have put where
  /// `state_of(wave)` is.
  template <class StateOf>
  PAGEDKV_DEVICE void finish_joined(const attention_walk& walk, std::int32_t first, std::int32_t num_waves,
                                    StateOf state_of) const {
    const auto& call = read_again(call_);
    const auto index = lane_ % columns;
    auto all = column_sums_of_wave{};
    PAGEDKV_NO_UNROLL
    for (auto wave = 0; wave < num_waves; ++wave) {
      const float reference = state_of(wave)[sums_at(index)];
      const float sum = state_of(wave)[sums_at(index) + 1];
      const auto largest = fmaxf(all.reference, reference);
      all.sum = all.sum * weight(all.reference, largest) + sum * weight(reference, largest);
      all.reference = largest;
    }
    const auto place = place_of_column(call, walk, index, all, lane_ == index && index % num_waves == first);
    PAGEDKV_NO_UNROLL
    for (auto column = first; column < columns; column += num_waves) {
      const auto largest = shuffle(all.reference, column, Matrix::lanes);
      write_column(call, walk, of_lane(place, column), [&](std::int32_t dim) {
        auto joined = vector<float, 4>{};
        PAGEDKV_NO_UNROLL
        for (auto wave = 0; wave < num_waves; ++wave) {
          const auto from = state_of(wave);
          const float reference = from[sums_at(column)];
          const auto factor = weight(reference, largest);
          const auto numbers = load_shared_vector<4>(from, place_of_number(column, dim));
          PAGEDKV_UNROLL
          for (auto i = 0; i < 4; ++i) {
            joined.values[i] += numbers.values[i] * factor;
          }
        }
        return joined;
      });
    }
  }

 protected:
  // A sum may grow to 2^headroom times its reference before the reference is replaced.
  static constexpr float headroom = 8.0F;
  static constexpr float least_bias = -64.0F;

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t first_column(int t) const {
    const auto first = t * Matrix::columns;
    return Waves > 1 ? wave_ * Tiles * Matrix::columns + first : first;
  }

  /// Only the waves of a workgroup read shared prefixes.
  [[nodiscard]] PAGEDKV_DEVICE static query_column find(const attention_call& call, const attention_walk& walk,
                                                        std::int32_t column) {
    if constexpr (Waves > 1) {
      return find_shared_column(call, walk.row, walk.task, column, columns);
    } else {
      return find_column(call, walk.row, walk.task, column, columns);
    }
  }

  PAGEDKV_DEVICE void load_queries(const attention_call& call, const attention_walk& walk, float factor) {
    // Elsewhere, another way to read queries takes scalar registers that some kernels do not have.
    if constexpr (Matrix::columns == 8) {
      const auto as_words = converts_words ? call.queries.aligned && call.queries.type != number_type::float32
                                           : has_queries_of_products<Numbers, Number>(call.queries);
      if (as_words) {
        load_short_queries(call, walk, factor);
        return;
      }
    }
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      registers<float, shape::key_chunks, shape::chunk> numbers;
      const auto column = find(call, walk, first_column(t) + Matrix::query_column(lane_));
      constexpr auto step = Matrix::key_parts * shape::chunk;
      read_query<Numbers>(call, column, Matrix::key_part(lane_) * shape::chunk, step, numbers);
      convert_query(t, numbers, factor);
    }
  }

  /// Whether queries of 16 bits are converted from words. Over elements of 16 bits they are seldom converted, and the
  /// instructions for it make short sequences 3 % slower.
  static constexpr bool converts_words = sizeof(storage) == 1;

  static constexpr int vectors_of_chunk = shape::chunk / 8;
  using stored_query = registers<vector<lane_word, 4>, shape::key_chunks * vectors_of_chunk>;

  /// Queries of 16-bit numbers, of any lengths that are multiples of 16 bytes. All reads are issued before the first is
  /// used.
  PAGEDKV_DEVICE void load_short_queries(const attention_call& call, const attention_walk& walk, float factor) {
    registers<vector<lane_word, 4>, Tiles, shape::key_chunks * vectors_of_chunk> stored;
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      read_stored_query(call, find(call, walk, first_column(t) + Matrix::query_column(lane_)), stored[t]);
    }
    const auto of_products = !converts_words || has_queries_of_products<Numbers, Number>(call.queries);
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      if (of_products) {
        put_query(t, stored[t], factor);
      } else {
        convert_stored_query(t, stored[t], factor);
      }
    }
  }

  PAGEDKV_DEVICE void read_stored_query(const attention_call& call, const query_column& column,
                                        stored_query& stored) const {
    const auto& rows = call.queries;
    const auto start =
        column.exists() ? column.token * rows.token_stride + column.head * rows.head_stride : std::int64_t{0};
    const auto* const from = static_cast<const std::uint16_t*>(rows.data) + start;
    PAGEDKV_UNROLL
    for (auto i = 0; i < shape::key_chunks * vectors_of_chunk; ++i) {
      const auto chunk = i / vectors_of_chunk * Matrix::key_parts + Matrix::key_part(lane_);
      const auto first = chunk * shape::chunk + i % vectors_of_chunk * 8;
      stored[i] = {};
      if (column.exists() && first < call.view.head_dim) {
        stored[i] = load_vector<4>(reinterpret_cast<const lane_word*>(from + first));
      }
    }
  }

  /// Keeps numbers of products as they are.
  PAGEDKV_DEVICE void put_query(int t, const stored_query& stored, float factor) {
    PAGEDKV_UNROLL
    for (auto i = 0; i < shape::key_chunks * vectors_of_chunk; ++i) {
      registers<lane_word, 4> words;
      PAGEDKV_UNROLL
      for (auto n = 0; n < 4; ++n) {
        words[n] = stored[i].values[n];
      }
      query_.put(t, i, words);
    }
    PAGEDKV_UNROLL
    for (auto c = 0; c < Matrix::score_columns; ++c) {
      factor_[t][c] = factor;
    }
  }

  /// Converts from the 16-bit type that is not that of products.
  PAGEDKV_DEVICE void convert_stored_query(int t, const stored_query& stored, float factor) {
    using other = std::conditional_t<std::is_same_v<Number, typename Numbers::brain>, typename Numbers::half,
                                     typename Numbers::brain>;
    registers<float, shape::key_chunks, shape::chunk> numbers;
    PAGEDKV_UNROLL
    for (auto j = 0; j < shape::key_chunks; ++j) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < shape::chunk; ++i) {
        const auto word = stored[j * vectors_of_chunk + i / 8].values[i % 8 / 2];
        numbers[j][i] = other::decode(static_cast<std::uint16_t>(i % 2 == 0 ? word : word >> 16), 1.0F);
      }
    }
    convert_query(t, numbers, factor);
  }

  PAGEDKV_DEVICE void convert_query(int t, const registers<float, shape::key_chunks, shape::chunk>& numbers,
                                    float factor) {
    auto largest = 0.0F;
    PAGEDKV_UNROLL
    for (auto j = 0; j < shape::key_chunks; ++j) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < shape::chunk; ++i) {
        largest = fmaxf(largest, fabsf(numbers[j][i]));
      }
    }
    // Powers of two keep numbers within binary16 for any range of the queries.
    largest = Matrix::reduce_parts(largest, [](float a, float b) { return fmaxf(a, b); });
    const auto exponent =
        static_cast<std::int32_t>(static_cast<lane_word>(__builtin_bit_cast(std::int32_t, largest)) >> 23) - 127;
    const auto usual = exponent >= -100 && exponent <= 100 ? exponent : 0;
    const auto down = __builtin_bit_cast(float, (127 - usual) << 23);
    const auto up = __builtin_bit_cast(float, (127 + usual) << 23);
    PAGEDKV_UNROLL
    for (auto j = 0; j < shape::key_chunks; ++j) {
      PAGEDKV_UNROLL
      for (auto group = 0; group < shape::chunk / 8; ++group) {
        registers<lane_word, 4> words;
        PAGEDKV_UNROLL
        for (auto i = 0; i < 4; ++i) {
          const auto first = group * 8 + 2 * i;
          words[i] = pack<Number>(numbers[j][first] * down, numbers[j][first + 1] * down);
        }
        query_.put(t, j * shape::chunk / 8 + group, words);
      }
    }
    PAGEDKV_UNROLL
    for (auto c = 0; c < Matrix::score_columns; ++c) {
      factor_[t][c] = Matrix::column_value(up * factor, lane_, c);
    }
  }

  template <class ReadAhead>
  PAGEDKV_DEVICE void multiply_keys(const ReadAhead& tile, registers<float, Tiles, Matrix::sums>& scores) {
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
          expand<Element, Number>(stored[k], expanded);
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
          query_.take(t, j * num_words / 4 + group, words);
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
          Matrix::template multiply_keys<Number>(halves[k % 2][t], of_keys, of_query);
        }
      }
    }
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < Matrix::sums; ++i) {
        scores[t][i] = halves[0][t][i] + halves[1][t][i];
      }
    }
  }

  /// The softmax of a column so far: `sum` adds exponentials relative to `reference`, both in base 2.
  struct column_sums_of_wave {
    float reference = -INFINITY;
    float sum = 0.0F;
  };

  [[nodiscard]] static PAGEDKV_DEVICE float weight(float reference, float largest) {
    return reference == -INFINITY ? 0.0F : power_of_two(reference - largest);
  }

  /// The sums of a column of the t-th matrix; each lane may ask for another one.
  [[nodiscard]] PAGEDKV_DEVICE column_sums_of_wave sums_of_column(int t, int index) const {
    auto add = [](float a, float b) { return a + b; };
    const auto from = index / Matrix::score_columns;
    auto sums = column_sums_of_wave{};
    PAGEDKV_UNROLL
    for (auto c = 0; c < Matrix::score_columns; ++c) {
      const auto reference = shuffle(reference_[t][c], from, Matrix::lanes);
      const auto sum = shuffle(Matrix::reduce_rows(sum_[t][c], add), from, Matrix::lanes);
      const auto this_one = index % Matrix::score_columns == c;
      sums.reference = this_one ? reference : sums.reference;
      sums.sum = this_one ? sum : sums.sum;
    }
    return sums;
  }

  /// Places in shared memory of a wave's numbers and sums. Chunks of 16 bytes are permuted so that lanes which are
  /// served together use different banks.
  [[nodiscard]] static PAGEDKV_DEVICE std::size_t place_of_number(std::int32_t column, std::int32_t dim) {
    const auto spread = column / 2 % 2 * 4 + column / 4 % 2;
    return static_cast<std::size_t>(column * value_numbers + (dim ^ spread * 4));
  }
  [[nodiscard]] static PAGEDKV_DEVICE std::size_t sums_at(std::int32_t column) {
    return static_cast<std::size_t>(columns * value_numbers + column * 2);
  }

  PAGEDKV_DEVICE void put_numbers(int t, const shared_span<float>& to, std::int32_t first) const {
    PAGEDKV_UNROLL
    for (auto c = 0; c < Matrix::score_columns; ++c) {
      const auto column = first + Matrix::score_column(lane_, c);
      write(output_[t], c, [&](std::int32_t dim, const auto& numbers) {
        PAGEDKV_UNROLL
        for (auto i = 0; i < value_shape::value_chunk; i += 4) {
          store_shared_vector(to, place_of_number(column, dim + i),
                              vector<float, 4>{{numbers.values[i], numbers.values[i + 1], numbers.values[i + 2],
                                                numbers.values[i + 3]}});
        }
      });
    }
  }

  /// Where the result of a column goes.
  struct column_place {
    std::int64_t at = -1;  // of the first number, in the output or among the partial results; -1: there is no column
    float factor = 0.0F;   // of the numbers of a whole task; 0: they are zeros
  };

  /// Also writes what a column has beside its numbers, on a lane that is its `writer`.
  [[nodiscard]] PAGEDKV_DEVICE static column_place place_of_column(const attention_call& call,
                                                                   const attention_walk& walk, std::int32_t column,
                                                                   const column_sums_of_wave& sums, bool writer) {
    const auto query = find(call, walk, column);
    auto place = column_place{};
    if (!query.exists()) {
      return place;
    }
    if (walk.whole) {
      const auto ended = end_softmax(call, query, sums.reference, sums.sum);
      place = {query.token * call.output.token_stride + query.head * call.output.head_stride, ended.factor};
      if (writer) {
        write_log_sum_exp(call, query, ended);
      }
    } else {
      const auto at = static_cast<std::int64_t>(walk.partial) * columns + column;
      place.at = at * call.partial_stride;
      if (writer) {
        write_partial_sum(call, at, sums.reference, sums.sum);
      }
    }
    return place;
  }

  [[nodiscard]] static PAGEDKV_DEVICE column_place of_lane(const column_place& place, std::int32_t lane) {
    return {shuffle(place.at, lane, Matrix::lanes), shuffle(place.factor, lane, Matrix::lanes)};
  }

  /// Neighbouring lanes write neighbouring numbers. `numbers(dim)`: four of the column.
  template <class NumbersOf>
  PAGEDKV_DEVICE void write_column(const attention_call& call, const attention_walk& walk, const column_place& place,
                                   NumbersOf numbers) const {
    PAGEDKV_NO_UNROLL
    for (auto dim = lane_ * 4; place.at >= 0 && dim < call.output.dim; dim += Matrix::lanes * 4) {
      if (walk.whole) {
        write_numbers<Numbers>(call.output, place.at + dim, call.output.dim - dim, scale(numbers(dim), place.factor));
      } else {
        store_vector<4>(call.partials + place.at + dim, numbers(dim));
      }
    }
  }

  PAGEDKV_DEVICE void scale_values(const attention_call& call, const attention_walk& walk) {
    if constexpr (has_static_scales<Element>) {
      scale_output(static_value_scale<Element>(call, walk));
    }
  }

  PAGEDKV_DEVICE void scale_output(float scale) {
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < value_shape::value_chunks * value_shape::products; ++i) {
        PAGEDKV_UNROLL
        for (auto j = 0; j < Matrix::sums; ++j) {
          output_[t][i][j] *= scale;
        }
      }
    }
  }

  /// The sums of one column of matrices.
  using column_sums = registers<float, value_shape::value_chunks * value_shape::products, Matrix::sums>;

  template <class ReadAhead, std::size_t N>
  static PAGEDKV_DEVICE void multiply_values(const ReadAhead& tile, const typename Matrix::weights (&weights)[N],
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
          pair_rows<Element, Number>(rows[2 * i][k], rows[2 * i + 1][k], of_word);
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
          Matrix::template multiply_values<Number>(output[t][j * value_shape::products + p], of_values, weights[t]);
        }
      }
    }
  }

  PAGEDKV_INLINED_DEVICE void apply_options(registers<float, Tiles, Matrix::sums>& scores, std::int32_t first_token) {
    if (call_.soft_cap > 0.0F) {
      PAGEDKV_UNROLL
      for (auto t = 0; t < Tiles; ++t) {
        PAGEDKV_UNROLL
        for (auto i = 0; i < Matrix::sums; ++i) {
          scores[t][i] = call_.soft_cap * log2_e * tanhf(scores[t][i] / call_.soft_cap);
        }
      }
    }
    if (call_.alibi_slopes != nullptr) {
      PAGEDKV_UNROLL
      for (auto t = 0; t < Tiles; ++t) {
        PAGEDKV_UNROLL
        for (auto i = 0; i < Matrix::sums; ++i) {
          const auto token = first_token + Matrix::score_row(lane_, i / Matrix::score_columns);
          scores[t][i] += rules_[t][i % Matrix::score_columns].bias(token);
        }
      }
    }
  }

  PAGEDKV_DEVICE void apply_tree_masks(registers<float, Tiles, Matrix::sums>& scores, std::int32_t first_token) const {
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < Matrix::sums; ++i) {
        const auto token = first_token + Matrix::score_row(lane_, i / Matrix::score_columns);
        scores[t][i] = branches_[t][i % Matrix::score_columns].hide(token) ? -INFINITY : scores[t][i];
      }
    }
  }

  PAGEDKV_INLINED_DEVICE void raise_reference(const registers<float, Tiles, Matrix::sums>& scores,
                                      const registers<float, Matrix::score_rows>& bias) {
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto c = 0; c < Matrix::score_columns; ++c) {
        auto largest = reference_[t][c];
        PAGEDKV_UNROLL
        for (auto r = 0; r < Matrix::score_rows; ++r) {
          largest = fmaxf(largest, scores[t][r * Matrix::score_columns + c] + bias[r]);
        }
        largest = Matrix::reduce_rows(largest, [](float a, float b) { return fmaxf(a, b); });
        const auto factor = largest == -INFINITY ? 1.0F : power_of_two(reference_[t][c] - largest);
        reference_[t][c] = largest;
        sum_[t][c] *= factor;
        PAGEDKV_UNROLL
        for (auto i = 0; i < value_shape::value_chunks * value_shape::products; ++i) {
          PAGEDKV_UNROLL
          for (auto r = 0; r < Matrix::score_rows; ++r) {
            output_[t][i][r * Matrix::score_columns + c] *= factor;
          }
        }
      }
    }
  }

  /// Calls `put(first dimension, numbers)` for each chunk of a column's output that this lane holds.
  template <class Put>
  PAGEDKV_DEVICE void write(const column_sums& output, int c, Put put) const {
    PAGEDKV_UNROLL
    for (auto j = 0; j < value_shape::value_chunks; ++j) {
      PAGEDKV_UNROLL
      for (auto part = 0; part < Matrix::output_parts; ++part) {
        const auto first = (j * Matrix::value_parts + Matrix::output_part(lane_, part)) * value_shape::value_chunk;
        auto numbers = vector<float, value_shape::value_chunk>{};
        PAGEDKV_UNROLL
        for (auto dim = 0; dim < value_shape::value_chunk; ++dim) {
          numbers.values[dim] =
              output[j * value_shape::products + Matrix::output_product(dim)][Matrix::output_sum(dim, part, c)];
        }
        put(first, numbers);
      }
    }
  }

  const attention_call& call_;
  int lane_;
  int wave_;
  queries query_;
  registers<float, Tiles, Matrix::score_columns> factor_;
  registers<score_rule, Tiles, Matrix::score_columns> rules_;
  registers<hidden_branches, Tiles, (Waves > 1 ? Matrix::score_columns : 1)> branches_;
  registers<float, Tiles, Matrix::score_columns> reference_;
  registers<float, Tiles, Matrix::score_columns> sum_;
  registers<float, Tiles, value_shape::value_chunks * value_shape::products, Matrix::sums> output_;
};

}  // namespace pagedkv::kernels
