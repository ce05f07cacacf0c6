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
  using shape = tile_shape<Element, HeadDim, Matrix, Waves == 1 && has_fragments<Element, HeadDim, Tiles, Matrix>>;
  using value_shape = tile_shape<Element, ValueDim, Matrix>;
  using storage = typename Element::storage;
  using Number = typename Numbers::template of_products<Element>;

 public:
  static constexpr int columns = Waves * Tiles * Matrix::columns;  // of a task

  /// Whether rows of 64 bytes are multiplied as fragments. Such rows come so fast that what a wave does for each tile
  /// counts: tiles whose tokens all columns see, of a call without options, have arithmetic of their own.
  static constexpr bool in_fragments = shape::in_fragments;

  /// Queries lie in shared memory for the largest dimension: registers do not suffice for two matrices side by side.
  using queries = lane_queries<Tiles, shape::key_words, Matrix::lanes, (Waves == 1 && Tiles > 1 && HeadDim > 128)>;

  /// `first_query_byte`: of the wave's `queries::wave_bytes` of shared memory.
  PAGEDKV_DEVICE piece_state(const attention_call& call, int lane, int wave = 0, std::size_t first_query_byte = 0)
      : call_(call), lane_(lane), wave_(wave), query_(first_query_byte, lane) {}

  PAGEDKV_DEVICE void begin(const attention_walk& walk) {
    const auto& call = read_again(call_);
    auto factor = call.soft_cap > 0.0F ? call.scale : call.scale * log2_e;
    factor *= static_key_scale<Element>(call, walk);
    if constexpr (in_fragments) {
      first_plain_ = 0;
      last_plain_ = INT32_MAX;
      load_fragment_queries(call, walk, factor);
    } else {
      load_queries(call, walk, factor);
    }
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto c = 0; c < Matrix::score_columns; ++c) {
        const auto column = first_column(t) + Matrix::score_column(lane_, c);
        rules_[t][c] = score_rule::of(call, find(call, walk, column));
        if constexpr (in_fragments) {
          if (find(call, walk, column).exists()) {
            const auto& rule = rules_[t][c];
            first_plain_ = rule.first_token > first_plain_ ? rule.first_token : first_plain_;
            last_plain_ = rule.last_token < last_plain_ ? rule.last_token : last_plain_;
          }
        }
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
    if constexpr (in_fragments) {
      find_plain_tiles(call);
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
    if constexpr (in_fragments) {
      multiply_key_fragments(tile, 0, scores);
    } else {
      multiply_keys(tile, scores);
    }
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
    if constexpr (in_fragments) {
      multiply_value_fragments(tile, 0, weights);
    } else {
      multiply_values(tile, weights, output_);
    }
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

  /// Whether keys are multiplied as they are stored, by the two bytes of queries of 16 bits.
  static constexpr bool multiplies_bytes = in_fragments && !has_halves<Element>;

  /// Combines over all columns what is known of the first tokens of plain tiles.
  PAGEDKV_DEVICE void find_plain_tiles(const attention_call& call) {
    PAGEDKV_UNROLL
    for (auto distance = 1; distance < Matrix::key_parts; distance *= 2) {
      const auto first = shuffle_xor(first_plain_, distance, Matrix::lanes);
      const auto last = shuffle_xor(last_plain_, distance, Matrix::lanes);
      first_plain_ = first > first_plain_ ? first : first_plain_;
      last_plain_ = last < last_plain_ ? last : last_plain_;
    }
    first_plain_ = call.soft_cap <= 0.0F && call.alibi_slopes == nullptr ? first_plain_ : INT32_MAX;
    last_plain_ -= attention_tile - 1;
  }

  /// The scores of a plain tile's products.
  struct plain_scores {
    registers<float, Tiles, Matrix::sums> products;
    registers<float, Tiles, Matrix::sums> factor;  // of the products
    registers<float, Matrix::score_rows> weight;   // of the values
    registers<float, Matrix::score_rows> bias;     // the weight's logarithm
    registers<float, Tiles, Matrix::sums> exponents;
  };

  template <class ReadAhead>
  PAGEDKV_INLINED_DEVICE void take_plain_scales(const ReadAhead& tiles, int n, plain_scores& tile) const {
    PAGEDKV_UNROLL
    for (auto r = 0; r < Matrix::score_rows; ++r) {
      tile.weight[r] = 1.0F;
      tile.bias[r] = 0.0F;
      auto key_scale = 1.0F;
      if constexpr (Element::scaled) {
        const auto scales = tiles.scales_of(n, r);
        key_scale = scales.values[0];
        tile.weight[r] = scales.values[1];
        tile.bias[r] = fmaxf(binary_logarithm(tile.weight[r]), least_bias);
      }
      PAGEDKV_UNROLL
      for (auto t = 0; t < Tiles; ++t) {
        PAGEDKV_UNROLL
        for (auto c = 0; c < Matrix::score_columns; ++c) {
          tile.factor[t][r * Matrix::score_columns + c] = Element::scaled ? key_scale * factor_[t][c] : factor_[t][c];
        }
      }
    }
  }

  /// Turns products into exponents; whether the reference has to grow.
  [[nodiscard]] PAGEDKV_INLINED_DEVICE bool find_exponents(plain_scores& tile) const {
    auto grows = false;
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < Matrix::sums; ++i) {
        const auto reference = reference_[t][i % Matrix::score_columns];
        tile.exponents[t][i] = fmaf(tile.products[t][i], tile.factor[t][i], -reference);
        grows = grows || tile.exponents[t][i] > headroom - tile.bias[i / Matrix::score_columns];
      }
    }
    return grows;
  }

  PAGEDKV_INLINED_DEVICE void raise_for(const plain_scores& tile) {
    registers<float, Tiles, Matrix::sums> scores;
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < Matrix::sums; ++i) {
        scores[t][i] = tile.products[t][i] * tile.factor[t][i];
      }
    }
    raise_reference(scores, tile.bias);
  }

  template <class ReadAhead>
  PAGEDKV_INLINED_DEVICE void add_plain_values(const ReadAhead& tiles, int n, const plain_scores& tile) {
    registers<typename Matrix::weights, Tiles> weights;
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      registers<float, Matrix::sums> probabilities;
      PAGEDKV_UNROLL
      for (auto i = 0; i < Matrix::sums; ++i) {
        const auto probability = power_of_two(tile.exponents[t][i]);
        sum_[t][i % Matrix::score_columns] += probability;
        probabilities[i] = Element::scaled ? probability * tile.weight[i / Matrix::score_columns] : probability;
      }
      weights[t] = Matrix::template make_weights<Number>(probabilities);
    }
    multiply_value_fragments(tiles, n, weights);
  }

 public:
  /// Whether `add_plain_tiles` takes a tile.
  [[nodiscard]] PAGEDKV_DEVICE bool is_plain(std::int32_t first_token) const {
    return first_token >= first_plain_ && first_token <= last_plain_;
  }

  /// Adds plain tiles, as many as are read at once. Columns that do not exist have zeros as queries.
  template <class ReadAhead>
  PAGEDKV_INLINED_DEVICE void add_plain_tiles(const ReadAhead& tiles) {
    constexpr auto count = ReadAhead::at_once;
    registers<plain_scores, count> all;
    auto grows = false;
    PAGEDKV_UNROLL
    for (auto n = 0; n < count; ++n) {
      multiply_key_fragments(tiles, n, all[n].products);
    }
    PAGEDKV_UNROLL
    for (auto n = 0; n < count; ++n) {
      take_plain_scales(tiles, n, all[n]);
      const auto raises = find_exponents(all[n]);
      grows = grows || raises;
    }
    if (any(grows)) {
      PAGEDKV_UNROLL
      for (auto n = 0; n < count; ++n) {
        raise_for(all[n]);
      }
      PAGEDKV_UNROLL
      for (auto n = 0; n < count; ++n) {
        static_cast<void>(find_exponents(all[n]));
      }
    }
    PAGEDKV_UNROLL
    for (auto n = 0; n < count; ++n) {
      add_plain_values(tiles, n, all[n]);
    }
  }

 protected:
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

  /// Queries for products of fragments. Of 16-bit rows, all reads are issued before the first is used.
  PAGEDKV_DEVICE void load_fragment_queries(const attention_call& call, const attention_walk& walk, float factor) {
    const auto& rows = call.queries;
    registers<vector<lane_word, 2>, Tiles, HeadDim / 16> stored = {};
    const auto as_words = rows.aligned && rows.type != number_type::float32;
    if (as_words) {
      PAGEDKV_UNROLL
      for (auto t = 0; t < Tiles; ++t) {
        const auto column = find(call, walk, first_column(t) + Matrix::query_column(lane_));
        const auto start = column.token * rows.token_stride + column.head * rows.head_stride;
        const auto* const from = static_cast<const std::uint16_t*>(rows.data) + start + Matrix::key_part(lane_) * 4;
        PAGEDKV_UNROLL
        for (auto j = 0; j < HeadDim / 16; ++j) {
          if (column.exists() && j * 16 < call.view.head_dim) {
            stored[t][j] = load_vector<2>(reinterpret_cast<const lane_word*>(from + j * 16));
          }
        }
      }
    }
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      fragment_query numbers;
      if (!as_words) {
        const auto column = find(call, walk, first_column(t) + Matrix::query_column(lane_));
        read_query<Numbers>(call, column, Matrix::key_part(lane_) * 4, 16, numbers);
      } else if (rows.type == number_type::float16) {
        decode_fragment<typename Numbers::half>(stored[t], numbers);
      } else {
        decode_fragment<typename Numbers::brain>(stored[t], numbers);
      }
      if constexpr (multiplies_bytes) {
        put_byte_query(t, numbers, factor);
      } else {
        registers<float, shape::key_chunks, shape::chunk> in_order;
        PAGEDKV_UNROLL
        for (auto i = 0; i < HeadDim / 4; ++i) {
          in_order[i / shape::chunk][i % shape::chunk] = numbers[i / 4][i % 4];
        }
        convert_query(t, in_order, factor);
      }
    }
  }

  /// Four numbers of each chunk of a key.
  using fragment_query = registers<float, HeadDim / 16, 4>;

  template <class Stored>
  static PAGEDKV_DEVICE void decode_fragment(const vector<lane_word, 2> (&stored)[std::size_t{HeadDim} / 16],
                                             fragment_query& numbers) {
    PAGEDKV_UNROLL
    for (auto j = 0; j < HeadDim / 16; ++j) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < 4; ++i) {
        const auto word = stored[j].values[i / 2];
        numbers[j][i] = Stored::decode(static_cast<std::uint16_t>(i % 2 == 0 ? word : word >> 16), 1.0F);
      }
    }
  }

  /// Keeps a query as whole numbers of 16 bits times a power of two: the upper byte of four numbers in a word, and the
  /// lower one in another. Numbers of bfloat16 down to a 128th of the largest stay as they are.
  PAGEDKV_DEVICE void put_byte_query(int t, const fragment_query& numbers, float factor) {
    auto largest = lane_word{0};  // as integers, numbers without a sign have the same order, and NaN is the largest
    PAGEDKV_UNROLL
    for (auto j = 0; j < HeadDim / 16; ++j) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < 4; ++i) {
        const auto number = bits_of(fabsf(numbers[j][i]));
        largest = number > largest ? number : largest;
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
    registers<lane_word, 2, HeadDim / 16> words;  // upper and lower bytes
    PAGEDKV_UNROLL
    for (auto j = 0; j < HeadDim / 16; ++j) {
      registers<lane_word, 4> whole;
      PAGEDKV_UNROLL
      for (auto i = 0; i < 4; ++i) {
        // Beside this number, neighbours in float32 are one apart, so its lower bits are those of the integer.
        constexpr auto integers = 0x1.8p23F;
        const auto number = fminf(fmaf(numbers[j][i], down, integers), integers + 32767.0F);
        whole[i] = bits_of(number);
      }
      const auto first = permute_bytes<0x5140>(whole[0], whole[1]);
      const auto second = permute_bytes<0x5140>(whole[2], whole[3]);
      words[0][j] = permute_bytes<0x7632>(first, second);
      words[1][j] = permute_bytes<0x5410>(first, second);
    }
    query_.put(t, 0, words[0]);
    query_.put(t, 1, words[1]);
    PAGEDKV_UNROLL
    for (auto c = 0; c < Matrix::score_columns; ++c) {
      factor_[t][c] = Matrix::column_value(up * factor, lane_, c);
    }
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

  /// Products of fragments of keys, and queries.
  template <class ReadAhead>
  PAGEDKV_DEVICE void multiply_key_fragments(const ReadAhead& tiles, int n,
                                             registers<float, Tiles, Matrix::sums>& scores) const {
    static_assert(HeadDim == 64);
    registers<lane_word, 2, 4> keys;
    tiles.take_key_fragment(n, 0, keys[0]);
    tiles.take_key_fragment(n, 1, keys[1]);
    if constexpr (multiplies_bytes) {
      multiply_bytes(keys, scores);
    } else {
      multiply_halves(keys, scores);
    }
  }

  PAGEDKV_DEVICE void multiply_bytes(const registers<lane_word, 2, 4>& keys,
                                     registers<float, Tiles, Matrix::sums>& scores) const {
    PAGEDKV_UNROLL
    for (auto t = 0; t < Tiles; ++t) {
      registers<lane_word, 2, 4> query;  // upper and lower bytes
      query_.take(t, 0, query[0]);
      query_.take(t, 1, query[1]);
      registers<std::int32_t, 2, Matrix::sums> sums = {};
      PAGEDKV_UNROLL
      for (auto j = 0; j < 2; ++j) {
        const registers<lane_word, 2, 2> of_keys = {{keys[j][0], keys[j][2]}, {keys[j][1], keys[j][3]}};
        Matrix::template multiply_bytes<true>(sums[0], of_keys, {query[0][j * 2], query[0][j * 2 + 1]});
        Matrix::template multiply_bytes<false>(sums[1], of_keys, {query[1][j * 2], query[1][j * 2 + 1]});
      }
      PAGEDKV_UNROLL
      for (auto i = 0; i < Matrix::sums; ++i) {
        scores[t][i] = static_cast<float>(sums[0][i] * 256 + sums[1][i]);
      }
    }
  }

  PAGEDKV_DEVICE void multiply_halves(const registers<lane_word, 2, 4>& keys,
                                      registers<float, Tiles, Matrix::sums>& scores) const {
    // Two sums, so that half of the products need not wait for the other half.
    registers<float, 2, Tiles, Matrix::sums> halves = {};
    PAGEDKV_UNROLL
    for (auto chunk = 0; chunk < 4; ++chunk) {
      registers<lane_word, Matrix::key_rows, Matrix::key_words> of_keys;
      PAGEDKV_UNROLL
      for (auto i = 0; i < Matrix::key_rows; ++i) {
        expand<Element, Number>(keys[chunk / 2][chunk % 2 * 2 + i], of_keys[i]);
      }
      PAGEDKV_UNROLL
      for (auto t = 0; t < Tiles; ++t) {
        registers<lane_word, 4> query;
        query_.take(t, chunk / 2, query);
        Matrix::template multiply_keys<Number>(halves[chunk % 2][t], of_keys,
                                               {query[chunk % 2 * 2], query[chunk % 2 * 2 + 1]});
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
        if constexpr (in_fragments) {
          store_shared_vector(to, place_of_number(column, dim), numbers);
        } else {
          PAGEDKV_UNROLL
          for (auto i = 0; i < value_shape::value_chunk; i += 4) {
            store_shared_vector(to, place_of_number(column, dim + i),
                                vector<float, 4>{{numbers.values[i], numbers.values[i + 1], numbers.values[i + 2],
                                                  numbers.values[i + 3]}});
          }
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

  /// A chunk of 16 numbers is a product: lanes have two neighbours of it.
  template <class ReadAhead>
  PAGEDKV_DEVICE void multiply_value_fragments(const ReadAhead& tiles, int n,
                                               const typename Matrix::weights (&weights)[std::size_t{Tiles}]) {
    PAGEDKV_UNROLL
    for (auto j = 0; j < 2; ++j) {
      registers<lane_word, 4> stored;
      tiles.take_value_fragment(n, j, stored);
      PAGEDKV_UNROLL
      for (auto chunk = 0; chunk < 2; ++chunk) {
        registers<lane_word, Matrix::value_dims, Matrix::value_rows / 2> of_values;
        PAGEDKV_UNROLL
        for (auto i = 0; i < 2; ++i) {
          registers<lane_word, 2> pairs;
          pair_rows<Element, Number>(stored[chunk * 2 + i], pairs);
          of_values[0][i] = pairs[0];
          of_values[1][i] = pairs[1];
        }
        PAGEDKV_UNROLL
        for (auto t = 0; t < Tiles; ++t) {
          Matrix::template multiply_values<Number>(output_[t][j * 2 + chunk], of_values, weights[t]);
        }
      }
    }
  }

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
    if constexpr (in_fragments) {
      PAGEDKV_UNROLL
      for (auto chunk = 0; chunk < HeadDim / 16; ++chunk) {
        put(chunk * 16 + Matrix::value_part(lane_) * 2, vector<float, 2>{{output[chunk][c], output[chunk][2 + c]}});
      }
    } else {
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
  std::int32_t first_plain_;  // the first and the last token with which a plain tile begins
  std::int32_t last_plain_;
};

}  // namespace pagedkv::kernels
