#pragma once

#include <pagedkv/kernels/attention/group_tiles.hpp>
#include <pagedkv/kernels/attention/launcher.hpp>
#include <pagedkv/kernels/attention/matrix_piece.hpp>
#include <pagedkv/kernels/attention/packed_chunk.hpp>
#include <pagedkv/kernels/attention/warpgroup_latent.hpp>

namespace pagedkv::kernels {

/// The division of a workgroup's work on latent vectors. Scores: every wave has one tile of the stage and a group of
/// columns. Outputs: every wave has all tiles and columns, and a part of the values.
template <class Element, class Matrix>
struct latent_shape {
  static constexpr int waves = group_lanes / Matrix::lanes;
  static constexpr int tiles = 2;  // of a stage
  static constexpr int tokens = tiles * attention_tile;
  static constexpr int groups = waves / tiles;
  static constexpr int columns = groups * Matrix::columns;
  static constexpr int part = largest_value_dim / waves;  // numbers of a value
  using keys = tile_shape<Element, largest_plain_dim, Matrix>;
  using values = tile_shape<Element, part, Matrix>;
  static_assert(latent_columns % columns == 0 && values::value_bytes == vector_bytes);

  struct memory {
    shared_rows<keys::row_bytes, tokens> rows;
    shared_array<typename Matrix::weights, static_cast<std::size_t>(tiles* groups* Matrix::lanes)> weights;
    shared_array<float, static_cast<std::size_t>(tiles* columns)> largest;  // scores of the stage
    shared_array<float, static_cast<std::size_t>(tiles* columns)> totals;
    shared_array<float, static_cast<std::size_t>(columns)> references;
    shared_array<float, static_cast<std::size_t>(columns)> factors;  // of scores
  };
  static_assert(columns <= tokens, "queries pass through the memory of a stage");
};

/// The products of one wave, with the columns of its scores and the numbers of its outputs.
template <class Element, class Numbers, class Matrix>
using latent_products = row_products<Element, Numbers, largest_plain_dim, 1, Matrix,
                                     latent_shape<Element, Matrix>::part, latent_shape<Element, Matrix>::groups>;

/// The state of one wave of a workgroup for one piece of attention over latent vectors.
template <class Element, class Numbers, class Matrix>
class latent_piece : piece_state<latent_products<Element, Numbers, Matrix>, true> {
  using shape = latent_shape<Element, Matrix>;
  using products = latent_products<Element, Numbers, Matrix>;
  using base = piece_state<products, true>;
  using Number = typename Numbers::template of_products<Element>;
  using memory = typename shape::memory;

 public:
  /// `first`: of the task's `columns`.
  PAGEDKV_DEVICE latent_piece(const attention_call& call, memory& shared, int lane, int wave, std::int32_t first,
                              const std::int32_t& columns)
      : base(call, lane, wave / shape::tiles),
        shared_(shared),
        columns_(columns),
        tile_(wave % shape::tiles),
        part_(wave * shape::part),
        first_(first) {}

  /// All waves call this.
  PAGEDKV_DEVICE void begin(const attention_walk& walk) {
    const auto& call = read_again(base::call_);
    barrier();  // all waves have used the previous stage
    for (auto i = part_ / shape::part; i < shape::columns; i += shape::waves) {
      put_query(call, find_column(call, walk.row, walk.task, first_ + i, columns_), i);
    }
    barrier();
    take_queries();
    PAGEDKV_UNROLL
    for (auto c = 0; c < Matrix::score_columns; ++c) {
      const auto column = find_column(call, walk.row, walk.task, first_ + base::own_columns_.of_score(0, c), columns_);
      base::rules_[0][c] = score_rule::of(call, column);
      base::branches_[0][c] = hidden_branches::of(call, walk.row, column);
      base::reference_[0][c] = -INFINITY;
      base::sum_[0][c] = 0.0F;
    }
    PAGEDKV_UNROLL
    for (auto g = 0; g < shape::groups; ++g) {
      PAGEDKV_UNROLL
      for (auto c = 0; c < Matrix::score_columns; ++c) {
        references_[g][c] = -INFINITY;
      }
      PAGEDKV_UNROLL
      for (auto i = 0; i < shape::values::value_chunks * shape::values::products; ++i) {
        PAGEDKV_UNROLL
        for (auto j = 0; j < Matrix::sums; ++j) {
          outputs_[g][i][j] = 0.0F;
        }
      }
    }
  }

  /// Processes the stage in shared memory, which starts at a tile of the row. All waves call this.
  PAGEDKV_DEVICE void add_stage(const attention_walk& walk, std::int32_t tile) {
    registers<float, 1, Matrix::sums> scores;
    find_scores(walk.first_token(base::call_, tile + tile_), tile + tile_ < walk.end, scores);
    share_largest(scores);
    barrier();
    raise_references();
    share_weights(scores);
    barrier();
    PAGEDKV_UNROLL
    for (auto s = 0; s < shape::tiles; ++s) {
      registers<typename Matrix::weights, shape::groups> weights;
      PAGEDKV_UNROLL
      for (auto g = 0; g < shape::groups; ++g) {
        weights[g] = shared_.weights[weights_at(s, g)];
      }
      products::multiply_values(tile_rows{shared_, lane(), s * attention_tile, part_}, 0, weights, outputs_);
    }
  }

  /// Writes the piece's results, one group of columns after the other, through the memory of a stage. All waves call
  /// this.
  PAGEDKV_DEVICE void finish(const attention_walk& walk) {
    PAGEDKV_UNROLL
    for (auto c = 0; c < Matrix::score_columns; ++c) {
      const auto total = Matrix::reduce_rows(base::sum_[0][c], [](float a, float b) { return a + b; });
      if (Matrix::score_row(lane(), 0) == 0) {
        shared_.totals[of_column(tile_, base::own_columns_.wave, c)] = total;
      }
      PAGEDKV_UNROLL
      for (auto g = 0; g < shape::groups; ++g) {
        if (Matrix::score_row(lane(), 0) == 0 && part_ == 0) {
          shared_.references[of_column(0, g, c)] = references_[g][c];
        }
      }
    }
    PAGEDKV_UNROLL
    for (auto g = 0; g < shape::groups; ++g) {
      barrier();
      put_outputs(outputs_[g]);
      barrier();
      write_group(walk, g);
    }
  }

 private:
  static constexpr int chunks = shape::keys::row_bytes / vector_bytes;
  static constexpr int chunks_of_output = largest_value_dim / 4;
  static constexpr int chunks_of_lane = (chunks + Matrix::lanes - 1) / Matrix::lanes;

  [[nodiscard]] PAGEDKV_DEVICE int lane() const { return base::own_columns_.lane; }

  /// Puts a query into shared memory in the form that products take, divided by the largest power of two in it, which
  /// keeps it within binary16.
  PAGEDKV_DEVICE void put_query(const attention_call& call, const query_column& query, std::int32_t column) {
    registers<float, chunks_of_lane, shape::keys::chunk> numbers;
    read_query<Numbers>(call, query, lane() * shape::keys::chunk, Matrix::lanes * shape::keys::chunk, numbers);
    auto largest = 0.0F;
    PAGEDKV_UNROLL
    for (auto j = 0; j < chunks_of_lane; ++j) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < shape::keys::chunk; ++i) {
        largest = fmaxf(largest, fabsf(numbers[j][i]));
      }
    }
    for (auto distance = 1; distance < Matrix::lanes; distance *= 2) {
      largest = fmaxf(largest, shuffle_xor(largest, distance, Matrix::lanes));
    }
    const auto exponent =
        static_cast<std::int32_t>(static_cast<lane_word>(__builtin_bit_cast(std::int32_t, largest)) >> 23) - 127;
    const auto usual = exponent >= -100 && exponent <= 100 ? exponent : 0;
    const auto down = __builtin_bit_cast(float, (127 - usual) << 23);
    PAGEDKV_UNROLL
    for (auto j = 0; j < chunks_of_lane; ++j) {
      const auto chunk = j * Matrix::lanes + lane();
      auto words = vector<lane_word, 4>{};
      PAGEDKV_UNROLL
      for (auto i = 0; i < 4; ++i) {
        words.values[i] = pack<Number>(numbers[j][2 * i] * down, numbers[j][2 * i + 1] * down);
      }
      if (chunk < chunks) {
        shared_.rows.data[shared_.rows.at(column, chunk)] = words;
      }
    }
    if (lane() == 0) {
      const auto scale = call.soft_cap > 0.0F ? call.scale : call.scale * log2_e;
      shared_.factors[static_cast<std::size_t>(column)] = __builtin_bit_cast(float, (127 + usual) << 23) * scale;
    }
  }

  PAGEDKV_DEVICE void take_queries() {
    const auto row = base::own_columns_.first(0) + Matrix::query_column(lane());
    PAGEDKV_UNROLL
    for (auto j = 0; j < shape::keys::key_chunks; ++j) {
      registers<lane_word, 4> words;
      shared_.rows.take(row, j * Matrix::key_parts + Matrix::key_part(lane()), words);
      base::products_.queries.put(0, j, words);
    }
    PAGEDKV_UNROLL
    for (auto c = 0; c < Matrix::score_columns; ++c) {
      const auto column = base::own_columns_.of_score(0, c);
      base::products_.queries.factors[0][c] = shared_.factors[static_cast<std::size_t>(column)];
    }
  }

  /// A tile of the stage, as products of keys and of values read it.
  struct tile_rows {
    memory& shared;
    int lane;
    int first_row;
    int part;  // the first number of a value

    PAGEDKV_DEVICE void take_key(int i, int j, registers<lane_word, 4>& words) const {
      shared.rows.take(first_row + Matrix::key_row(lane, i), j * Matrix::key_parts + Matrix::key_part(lane), words);
    }
    PAGEDKV_DEVICE void take_value(int i, int j, registers<lane_word, 4>& words) const {
      const auto first = part / shape::values::value_chunk;
      shared.rows.take(first_row + Matrix::value_row(lane, i),
                       first + j * Matrix::value_parts + Matrix::value_part(lane), words);
    }
  };

  [[nodiscard]] PAGEDKV_DEVICE std::size_t weights_at(int tile, int group) const {
    return static_cast<std::size_t>((tile * shape::groups + group) * Matrix::lanes + lane());
  }
  [[nodiscard]] PAGEDKV_DEVICE std::size_t of_column(int tile, int group, int c) const {
    return static_cast<std::size_t>(tile * shape::columns + group * Matrix::columns + Matrix::score_column(lane(), c));
  }

  PAGEDKV_DEVICE void find_scores(std::int32_t first_token, bool in_piece, registers<float, 1, Matrix::sums>& scores) {
    base::products_.multiply_keys(tile_rows{shared_, lane(), tile_ * attention_tile, part_}, 0, scores);
    PAGEDKV_UNROLL
    for (auto i = 0; i < Matrix::sums; ++i) {
      scores[0][i] *= base::products_.queries.factors[0][i % Matrix::score_columns];
    }
    base::apply_options(scores, first_token);
    if (base::call_.tree_masks != nullptr) {
      base::apply_tree_masks(scores, first_token);
    }
    PAGEDKV_UNROLL
    for (auto i = 0; i < Matrix::sums; ++i) {
      const auto token = first_token + Matrix::score_row(lane(), i / Matrix::score_columns);
      const auto score = base::rules_[0][i % Matrix::score_columns].hide(scores[0][i], token);
      scores[0][i] = in_piece ? score : -INFINITY;
    }
  }

  PAGEDKV_DEVICE void share_largest(const registers<float, 1, Matrix::sums>& scores) {
    PAGEDKV_UNROLL
    for (auto c = 0; c < Matrix::score_columns; ++c) {
      auto largest = -INFINITY;
      PAGEDKV_UNROLL
      for (auto r = 0; r < Matrix::score_rows; ++r) {
        largest = fmaxf(largest, scores[0][r * Matrix::score_columns + c]);
      }
      largest = Matrix::reduce_rows(largest, [](float a, float b) { return fmaxf(a, b); });
      if (Matrix::score_row(lane(), 0) == 0) {
        shared_.largest[of_column(tile_, base::own_columns_.wave, c)] = largest;
      }
    }
  }

  /// Raises the references of columns. A wave's lanes hold all columns, so all waves decide equally.
  PAGEDKV_DEVICE void raise_references() {
    registers<float, shape::groups, Matrix::score_columns> largest;
    auto grows = false;
    PAGEDKV_UNROLL
    for (auto g = 0; g < shape::groups; ++g) {
      PAGEDKV_UNROLL
      for (auto c = 0; c < Matrix::score_columns; ++c) {
        largest[g][c] = references_[g][c];
        PAGEDKV_UNROLL
        for (auto s = 0; s < shape::tiles; ++s) {
          largest[g][c] = fmaxf(largest[g][c], shared_.largest[of_column(s, g, c)]);
        }
        grows = grows || largest[g][c] > references_[g][c] + base::headroom;
      }
    }
    if (!any(grows)) {
      return;
    }
    // The wave's own columns once more: an index that is not constant would move all references to memory.
    PAGEDKV_UNROLL
    for (auto c = 0; c < Matrix::score_columns; ++c) {
      auto own = base::reference_[0][c];
      PAGEDKV_UNROLL
      for (auto s = 0; s < shape::tiles; ++s) {
        own = fmaxf(own, shared_.largest[of_column(s, base::own_columns_.wave, c)]);
      }
      base::sum_[0][c] *= own == -INFINITY ? 1.0F : power_of_two(base::reference_[0][c] - own);
      base::reference_[0][c] = own;
    }
    PAGEDKV_UNROLL
    for (auto g = 0; g < shape::groups; ++g) {
      PAGEDKV_UNROLL
      for (auto c = 0; c < Matrix::score_columns; ++c) {
        const auto factor = largest[g][c] == -INFINITY ? 1.0F : power_of_two(references_[g][c] - largest[g][c]);
        references_[g][c] = largest[g][c];
        PAGEDKV_UNROLL
        for (auto i = 0; i < shape::values::value_chunks * shape::values::products; ++i) {
          PAGEDKV_UNROLL
          for (auto r = 0; r < Matrix::score_rows; ++r) {
            outputs_[g][i][r * Matrix::score_columns + c] *= factor;
          }
        }
      }
    }
  }

  PAGEDKV_DEVICE void share_weights(const registers<float, 1, Matrix::sums>& scores) {
    registers<float, Matrix::sums> probabilities;
    PAGEDKV_UNROLL
    for (auto i = 0; i < Matrix::sums; ++i) {
      const auto c = i % Matrix::score_columns;
      const auto reference = base::reference_[0][c] == -INFINITY ? 0.0F : base::reference_[0][c];
      probabilities[i] = power_of_two(scores[0][i] - reference);
      base::sum_[0][c] += probabilities[i];
    }
    shared_.weights[weights_at(tile_, base::own_columns_.wave)] = Matrix::template make_weights<Number>(probabilities);
  }

  PAGEDKV_DEVICE void put_outputs(const typename products::column_sums& outputs) {
    PAGEDKV_UNROLL
    for (auto c = 0; c < Matrix::score_columns; ++c) {
      const auto column = Matrix::score_column(lane(), c);
      products::for_each_chunk(outputs, lane(), c, [&](std::int32_t dim, const auto& numbers) {
        PAGEDKV_UNROLL
        for (auto i = 0; i < shape::values::value_chunk / 4; ++i) {
          auto words = vector<lane_word, 4>{};
          PAGEDKV_UNROLL
          for (auto n = 0; n < 4; ++n) {
            words.values[n] = __builtin_bit_cast(lane_word, static_cast<float>(numbers.values[4 * i + n]));
          }
          shared_.rows.data[static_cast<std::size_t>(column * chunks_of_output + (part_ + dim) / 4 + i)] = words;
        }
      });
    }
  }

  /// Writes the outputs of a group of columns that are in shared memory. Neighbouring lanes write neighbouring numbers.
  PAGEDKV_DEVICE void write_group(const attention_walk& walk, int group) {
    const auto& call = read_again(base::call_);
    const auto index = part_ / shape::part * Matrix::lanes + lane();
    for (auto i = index; i < Matrix::columns * chunks_of_output; i += group_lanes) {
      const auto column = group * Matrix::columns + i / chunks_of_output;
      const auto query = find_column(call, walk.row, walk.task, first_ + column, columns_);
      if (query.exists()) {
        const vector<lane_word, 4> words = shared_.rows.data[static_cast<std::size_t>(i)];
        auto numbers = vector<float, 4>{};
        PAGEDKV_UNROLL
        for (auto n = 0; n < 4; ++n) {
          numbers.values[n] = __builtin_bit_cast(float, words.values[n]);
        }
        write_chunk(call, walk, query, column, i % chunks_of_output * 4, numbers);
      }
    }
  }

  PAGEDKV_DEVICE void write_chunk(const attention_call& call, const attention_walk& walk, const query_column& query,
                                  std::int32_t column, std::int32_t dim, const vector<float, 4>& numbers) {
    const float reference = shared_.references[static_cast<std::size_t>(column)];
    auto total = 0.0F;
    PAGEDKV_UNROLL
    for (auto s = 0; s < shape::tiles; ++s) {
      total += shared_.totals[static_cast<std::size_t>(s * shape::columns + column)];
    }
    if (walk.whole) {
      const auto ended = end_softmax(call, query, reference, total);
      if (dim == 0) {
        write_log_sum_exp(call, query, ended);
      }
      write_output<Numbers>(call, query, dim, numbers, ended.factor);
      return;
    }
    const auto at = static_cast<std::int64_t>(walk.partial) * columns_ + first_ + column;
    if (dim == 0) {
      write_partial_sum(call, at, reference, total);
    }
    write_partial(call, at, dim, numbers);
  }

  memory& shared_;
  const std::int32_t& columns_;
  int tile_;
  int part_;
  std::int32_t first_;
  registers<float, shape::groups, Matrix::score_columns> references_;
  typename products::column_sums outputs_[static_cast<std::size_t>(shape::groups)];
};

/// Packed tokens of a stage on their way to shared memory, where they are rows like those of `row_copies`.
template <class Element, class Numbers, class Shape, int Tokens, int Lanes>
class packed_copies {
  using chunk_type = packed_chunk<Element, typename Numbers::half>;
  static constexpr int chunks = Shape::row_bytes / vector_bytes;
  static constexpr int count = Tokens * chunks / Lanes;
  static_assert(Tokens * chunks % Lanes == 0);

 public:
  template <class Location>
  PAGEDKV_DEVICE void read(const Location& where, int lane, const block_storage_view& view) {
    PAGEDKV_UNROLL
    for (auto i = 0; i < count; ++i) {
      const auto at = i * Lanes + lane;
      words_[i] = {};
      if (!where.empty()) {
        const auto token = where.find(at / chunks);
        if (token.exists) {
          const auto offset = token.offset * static_cast<std::int32_t>(view.token_stride);
          read_chunk(token.block + offset, at % chunks, words_[i]);
        }
      }
    }
  }

  template <class Rows>
  PAGEDKV_DEVICE void put(Rows& rows, int lane) const {
    PAGEDKV_UNROLL
    for (auto i = 0; i < count; ++i) {
      const auto at = i * Lanes + lane;
      auto words = words_[i];
      if (at % chunks < chunk_type::first_wide) {
        words = chunk_type::expand({words.values[0], words.values[1]}, __builtin_bit_cast(float, words.values[2]));
      }
      rows.data[Rows::at(at / chunks, at % chunks)] = words;
    }
  }

 private:
  /// A chunk as it is stored, and the scale of a quantised one.
  static PAGEDKV_DEVICE void read_chunk(const std::byte* from, int chunk, vector<lane_word, 4>& words) {
    if (chunk >= chunk_type::first_wide) {
      words = chunk_type::read_wide(from, chunk);
      return;
    }
    const auto stored = chunk_type::read_quantised(from, chunk);
    const auto scale = chunk_type::read_scale(from, chunk);
    words = {stored.values[0], stored.values[1], __builtin_bit_cast(lane_word, scale), 0};
  }

  registers<vector<lane_word, 4>, count> words_;
};

/// Latent vectors of a stage, packed or not.
template <class Element, class Numbers, class Shape, int Tokens>
class latent_copies : public row_copies<Shape, Tokens, group_lanes, true> {
 public:
  template <class Location>
  PAGEDKV_DEVICE void read(const Location& where, int lane, const block_storage_view& view) {
    row_copies<Shape, Tokens, group_lanes, true>::read(where, lane, 0, view.head_dim, view.token_stride, 0);
  }
};
template <class Element, class Numbers, class Shape, int Tokens>
  requires packs_tokens<Element>
class latent_copies<Element, Numbers, Shape, Tokens>
    : public packed_copies<Element, Numbers, Shape, Tokens, group_lanes> {};

/// The shape of the work on latent vectors, as products read them.
template <class Element, class Matrix>
using expanded_latent_shape = latent_shape<typename expanded<Element>::element, Matrix>;

/// Some of the `columns` of every task of a share, from `first` on.
template <class Element, class Numbers, class Matrix>
PAGEDKV_DEVICE void attend_latent_columns(const attention_call& call, const divider<std::int32_t>& block_size,
                                          typename expanded_latent_shape<Element, Matrix>::memory& shared,
                                          std::int32_t share, std::int32_t first, const std::int32_t& columns) {
  using shape = expanded_latent_shape<Element, Matrix>;
  const auto index = static_cast<int>(local_index().x);
  auto walk = attention_walk(call, share);
  auto next = latent_copies<Element, Numbers, typename shape::keys, shape::tokens>();
  auto state = latent_piece<typename expanded<Element>::element, Numbers, Matrix>(
      call, shared, index % Matrix::lanes, uniform(index / Matrix::lanes), first, columns);
  while (!walk.done) {
    const auto read = [&](std::int32_t tile) {
      const auto& view = read_again(call).view;
      with_stage<true, true>(call, block_size, walk, tile,
                             [&](const auto& where) { next.read(where, index, view); });
    };
    if (find_column(call, walk.row, walk.task, first, columns).exists()) {
      read(walk.tile);
      state.begin(walk);
      for (auto tile = walk.tile; tile < walk.end; tile += shape::tiles) {
        barrier();  // all waves have used the previous stage
        next.put(shared.rows, index);
        barrier();
        if (tile + shape::tiles < walk.end) {
          read(tile + shape::tiles);
        }
        state.add_stage(walk, tile);
      }
      state.finish(walk);
    }
    walk.next_piece();
  }
}

/// The most lanes of a workgroup of the kernel in the code that is compiled.
template <class Element>
inline constexpr int most_latent_lanes =
#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)
    warpgroup_latent_shape<Element>::lanes;
#else
    group_lanes;
#endif

/// Attention with matrix instructions over latent vectors: all query heads on one vector a token, whose first numbers
/// are the value. A share of the plan is a workgroup's, or that of several, by the `columns` of a task.
template <class Element, class Numbers, class Matrix>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(most_latent_lanes<Element>, 1)
    latent_attend_kernel(attention_call call, divider<std::int32_t> block_size, std::int32_t columns) {
  if constexpr (Matrix::unit::available) {
    const auto workgroup = latent_workgroup(columns);
#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)
    attend_latent_in_warpgroups<Element, Numbers>(call, block_size, workgroup);
#else
    wait_for_previous_kernel();
    let_next_kernel_start();
    using shape = expanded_latent_shape<Element, Matrix>;
    PAGEDKV_SHARED typename shape::memory shared;
    const auto own = workgroup.index() * latent_columns;
    for (auto first = own; first < own + latent_columns; first += shape::columns) {
      attend_latent_columns<Element, Numbers, Matrix>(call, block_size, shared, workgroup.share(), first, columns);
    }
#endif
  }
}

}  // namespace pagedkv::kernels
