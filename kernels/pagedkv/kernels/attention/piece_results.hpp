#pragma once

#include <pagedkv/kernels/attention/matrix.hpp>
#include <pagedkv/kernels/attention/result.hpp>
#include <pagedkv/kernels/attention/walk.hpp>

#include <cstddef>
#include <cstdint>

namespace pagedkv::kernels {

/// The softmax and the outputs of a wave's columns for one piece so far, and their way to memory.
template <class Products>
class piece_results {
  using Matrix = typename Products::matrix;
  using Element = typename Products::element;
  using Numbers = typename Products::numbers;

 public:
  static constexpr int columns = Products::columns::of_task;
  static constexpr int columns_of_wave = Products::tiles * Matrix::columns;

  PAGEDKV_DEVICE piece_results(const attention_call& call, const typename Products::columns& of_wave)
      : call_(call), own_columns_(of_wave) {}

  PAGEDKV_DEVICE void finish(const attention_walk& walk) {
    const auto& call = read_again(call_);
    scale_values(call, walk);
    PAGEDKV_UNROLL
    for (auto t = 0; t < Products::tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto c = 0; c < Matrix::score_columns; ++c) {
        const auto total = Matrix::reduce_rows(sum_[t][c], add);
        const auto column = own_columns_.of_score(t, c);
        const auto query = own_columns_.find(call, walk, column);
        if (query.exists()) {
          const auto writer = Matrix::score_row(own_columns_.lane, 0) == 0;
          if (walk.whole) {
            const auto ended = end_softmax(call, query, reference_[t][c], total);
            if (writer) {
              write_log_sum_exp(call, query, ended);
            }
            Products::for_each_chunk(output_[t], own_columns_.lane, c, [&](std::int32_t dim, const auto& numbers) {
              write_output<Numbers>(call, query, dim, numbers, ended.factor);
            });
          } else {
            const auto at = static_cast<std::int64_t>(walk.partial) * columns + column;
            if (writer) {
              write_partial_sum(call, at, reference_[t][c], total);
            }
            Products::for_each_chunk(output_[t], own_columns_.lane, c, [&](std::int32_t dim, const auto& numbers) {
              write_partial(call, at, dim, numbers);
            });
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
    for (auto t = 0; t < Products::tiles; ++t) {
      meet_wave();
      put_numbers(t, room, 0);
      meet_wave();
      const auto index = own_columns_.lane % Matrix::columns;
      const auto sums = sums_of_column(t, index);
      const auto place = place_of_column(call, walk, own_columns_.first(t) + index, sums, own_columns_.lane == index);
      PAGEDKV_NO_UNROLL
      for (auto column = 0; column < Matrix::columns; ++column) {
        write_column(call, walk, of_lane(place, column),
                     [&](std::int32_t dim) { return load_shared_vector<4>(room, place_of_number(column, dim)); });
      }
    }
  }

  /// Bytes of shared memory for the numbers of a matrix of columns, and for those of a wave with their sums.
  static constexpr int value_numbers = Products::value_numbers;
  static constexpr int bytes_of_matrix = Matrix::columns * value_numbers * 4;
  static constexpr int bytes_of_state = Products::tiles * bytes_of_matrix + columns_of_wave * 8;

  /// Puts what `finish_joined` takes into shared memory, `bytes_of_state` of it.
  PAGEDKV_DEVICE void put_state(const attention_walk& walk, const shared_span<float>& to) {
    scale_values(read_again(call_), walk);
    PAGEDKV_UNROLL
    for (auto t = 0; t < Products::tiles; ++t) {
      put_numbers(t, to, t * Matrix::columns);
      const auto index = own_columns_.lane % Matrix::columns;
      const auto sums = sums_of_column(t, index);
      if (own_columns_.lane == index) {
        const auto at = sums_at(t * Matrix::columns + index);
        to[at] = sums.reference;
        to[at + 1] = sums.sum;
      }
    }
  }

  /// Writes columns `first`, `first + num_waves` and so on of those of a wave, whose parts as many waves, at most
  /// `Waves`, have put where `state_of(wave)` is. Reads of all parts are issued together.
  template <int Waves, class StateOf>
  PAGEDKV_DEVICE void finish_joined(const attention_walk& walk, std::int32_t first, std::int32_t num_waves,
                                    StateOf state_of) const {
    const auto& call = read_again(call_);
    const auto index = own_columns_.lane % columns_of_wave;
    registers<softmax_so_far, Waves> parts;
    auto all = softmax_so_far{};
    PAGEDKV_UNROLL
    for (auto wave = 0; wave < Waves; ++wave) {
      parts[wave] = {};
      if (wave < num_waves) {
        parts[wave].reference = state_of(wave)[sums_at(index)];
        parts[wave].sum = state_of(wave)[sums_at(index) + 1];
      }
      all.reference = fmaxf(all.reference, parts[wave].reference);
    }
    registers<float, Waves> weights;
    PAGEDKV_UNROLL
    for (auto wave = 0; wave < Waves; ++wave) {
      weights[wave] = weight(parts[wave].reference, all.reference);
      all.sum += parts[wave].sum * weights[wave];
    }
    const auto place = place_of_column(call, walk, own_columns_.first(0) + index, all,
                                       own_columns_.lane == index && index % num_waves == first);
    PAGEDKV_NO_UNROLL
    for (auto column = first; column < columns_of_wave; column += num_waves) {
      registers<float, Waves> of_column;
      PAGEDKV_UNROLL
      for (auto wave = 0; wave < Waves; ++wave) {
        of_column[wave] = shuffle(weights[wave], column, Matrix::lanes);
      }
      write_column(call, walk, of_lane(place, column), [&](std::int32_t dim) {
        auto joined = vector<float, 4>{};
        PAGEDKV_UNROLL
        for (auto wave = 0; wave < Waves; ++wave) {
          if (wave < num_waves) {
            const auto numbers = load_shared_vector<4>(state_of(wave), place_of_number(column, dim));
            PAGEDKV_UNROLL
            for (auto i = 0; i < 4; ++i) {
              joined.values[i] += numbers.values[i] * of_column[wave];
            }
          }
        }
        return joined;
      });
    }
  }

 protected:
  PAGEDKV_DEVICE void clear() {
    PAGEDKV_UNROLL
    for (auto t = 0; t < Products::tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto c = 0; c < Matrix::score_columns; ++c) {
        reference_[t][c] = -INFINITY;
        sum_[t][c] = 0.0F;
      }
    }
    for_each_output([](float& number, int, int) { number = 0.0F; });
  }

  /// Calls `change(number, matrix, column of the lane)` for all numbers of the output.
  template <class Change>
  PAGEDKV_DEVICE void for_each_output(Change change) {
    PAGEDKV_UNROLL
    for (auto t = 0; t < Products::tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto& product : output_[t]) {
        PAGEDKV_UNROLL
        for (auto j = 0; j < Matrix::sums; ++j) {
          change(product[j], t, j % Matrix::score_columns);
        }
      }
    }
  }

 private:
  /// The softmax of a column so far: `sum` adds exponentials relative to `reference`, both in base 2.
  struct softmax_so_far {
    float reference = -INFINITY;
    float sum = 0.0F;
  };

  [[nodiscard]] static PAGEDKV_DEVICE float add(float a, float b) { return a + b; }

  [[nodiscard]] static PAGEDKV_DEVICE float weight(float reference, float largest) {
    return reference == -INFINITY ? 0.0F : power_of_two(reference - largest);
  }

  /// The sums of a column of the t-th matrix; each lane may ask for another one.
  [[nodiscard]] PAGEDKV_DEVICE softmax_so_far sums_of_column(int t, int index) const {
    const auto from = index / Matrix::score_columns;
    auto sums = softmax_so_far{};
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
    return static_cast<std::size_t>(columns_of_wave * value_numbers + column * 2);
  }

  PAGEDKV_DEVICE void put_numbers(int t, const shared_span<float>& to, std::int32_t first) const {
    PAGEDKV_UNROLL
    for (auto c = 0; c < Matrix::score_columns; ++c) {
      const auto column = first + Matrix::score_column(own_columns_.lane, c);
      Products::for_each_chunk(output_[t], own_columns_.lane, c,
                               [&]<int N>(std::int32_t dim, const vector<float, N>& numbers) {
                                 constexpr auto at_once = N < 4 ? N : 4;
                                 PAGEDKV_UNROLL
                                 for (auto i = 0; i < N; i += at_once) {
                                   auto some = vector<float, at_once>{};
                                   PAGEDKV_UNROLL
                                   for (auto n = 0; n < at_once; ++n) {
                                     some.values[n] = numbers.values[i + n];
                                   }
                                   store_shared_vector(to, place_of_number(column, dim + i), some);
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
                                                                   const softmax_so_far& sums, bool writer) {
    const auto query = Products::columns::find(call, walk, column);
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
    for (auto dim = own_columns_.lane * 4; place.at >= 0 && dim < call.output.dim; dim += Matrix::lanes * 4) {
      if (walk.whole) {
        write_numbers<Numbers>(call.output, place.at + dim, call.output.dim - dim, scale(numbers(dim), place.factor));
      } else {
        store_vector<4>(call.partials + place.at + dim, numbers(dim));
      }
    }
  }

  PAGEDKV_DEVICE void scale_values(const attention_call& call, const attention_walk& walk) {
    if constexpr (has_static_scales<Element>) {
      const auto scale = static_value_scale<Element>(call, walk);
      for_each_output([scale](float& number, int, int) { number *= scale; });
    }
  }

 protected:
  const attention_call& call_;
  typename Products::columns own_columns_;
  registers<float, Products::tiles, Matrix::score_columns> reference_;
  registers<float, Products::tiles, Matrix::score_columns> sum_;
  typename Products::column_sums output_[std::size_t{Products::tiles}];
};

}  // namespace pagedkv::kernels
