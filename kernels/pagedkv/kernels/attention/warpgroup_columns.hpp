#pragma once

// Queries, rules and results of the columns of attention with products of warpgroups. Empty for other compilers.

#include <pagedkv/kernels/attention/warpgroup_nvidia.hpp>

#if defined(__CUDACC__) && !defined(__HIPCC__)

  #include <pagedkv/kernels/attention/launcher.hpp>
  #include <pagedkv/kernels/attention/result.hpp>
  #include <pagedkv/kernels/attention/walk.hpp>
  #include <pagedkv/kernels/divider.hpp>

namespace pagedkv::kernels {

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

/// The columns of a piece, of which a lane has the rows `row` and `row + 8` of products. `Columns`: of a task.
template <class Numbers, class Number, int KeyDim, int Columns>
class warpgroup_columns {
 public:
  using query_rows = warpgroup_rows<Columns>;

  registers<float, 2> reference;
  registers<float, 2> sum;

  /// `queries` and `factors`: addresses in shared memory.
  PAGEDKV_DEVICE warpgroup_columns(const attention_call& call, unsigned queries, unsigned factors, int row)
      : call_(call), queries_(queries), of_factors_(factors), row_(row) {}

  /// Puts queries into shared memory, with asynchronous copies where their numbers are those of products.
  PAGEDKV_DEVICE void put_queries(const attention_walk& walk, int index) {
    const auto& call = read_again(call_);
    constexpr auto type = is_bfloat16<Number> ? number_type::bfloat16 : number_type::float16;
    if (call.queries.aligned && call.queries.type == type) {
      copy_queries(call, walk, index);
    } else {
      for (auto column = index / 32; column < Columns; column += group_lanes / 32) {
        convert_query(call, find_shared_column(call, walk.row, walk.task, column, Columns), column, index % 32);
      }
    }
  }

  /// After a barrier that follows `put_queries`.
  PAGEDKV_DEVICE void begin(const attention_walk& walk) {
    const auto& call = read_again(call_);
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      const auto column = find_shared_column(call, walk.row, walk.task, row_ + 8 * r, Columns);
      rules_[r] = score_rule::of(call, column);
      branches_[r] = hidden_branches::of(call, walk.row, column);
      factors_[r] = take_float(of_factors_ + static_cast<unsigned>(row_ + 8 * r) * 4);
      reference[r] = -INFINITY;
      sum[r] = 0.0F;
    }
  }

  /// Turns products into scores. Product `i` of a lane: row `i / 2 % 2`, token `i / 4 * 8 + i % 2` of those from
  /// `first_token` + 2 * (lane % 4) on.
  template <std::size_t N>
  PAGEDKV_DEVICE void score(float (&scores)[N], std::int32_t first_token, std::int32_t end_token, int lane) const {
    PAGEDKV_UNROLL
    for (auto i = std::size_t{0}; i < N; ++i) {
      scores[i] *= factors_[i / 2 % 2];
    }
    const auto last = first_token + static_cast<std::int32_t>(N) * 2 - 1;
    const auto seen = [&](int r) { return rules_[r].first_token <= first_token && last <= rules_[r].last_token; };
    const auto partly = last >= end_token || !seen(0) || !seen(1);
    if (any(partly) != 0 || call_.soft_cap > 0.0F || call_.alibi_slopes != nullptr) {
      apply_options(scores, first_token + lane % 4 * 2, end_token);
    }
  }

  /// The largest score of each row of this lane; whether a reference has to grow.
  template <std::size_t N>
  [[nodiscard]] PAGEDKV_DEVICE bool find_largest(const float (&scores)[N], registers<float, 2>& largest) const {
    constexpr auto headroom = 8.0F;
    PAGEDKV_UNROLL
    for (auto r = std::size_t{0}; r < 2; ++r) {
      largest[r] = -INFINITY;
      PAGEDKV_UNROLL
      for (auto i = std::size_t{0}; i < N / 2; ++i) {
        largest[r] = fmaxf(largest[r], scores[i / 2 * 4 + r * 2 + i % 2]);
      }
    }
    return largest[0] > reference[0] + headroom || largest[1] > reference[1] + headroom;
  }

  /// Raises a reference; the factor of sums and outputs so far.
  [[nodiscard]] PAGEDKV_DEVICE float raise(int r, float largest) {
    const auto raised = fmaxf(reference[r], largest);
    const auto factor = raised == -INFINITY ? 1.0F : power_of_two(reference[r] - raised);
    reference[r] = raised;
    sum[r] *= factor;
    return factor;
  }

  /// Writes a row's numbers from `first_dim` on, and if `writes_sum` its sum. Outputs `i` of a lane: dimensions
  /// `i / 4 * 8 + i % 2` + 2 * (lane % 4) of row `i / 2 % 2`.
  template <std::size_t N>
  PAGEDKV_DEVICE void write(const attention_walk& walk, int r, float total, bool writes_sum, std::int32_t first_dim,
                            const float (&output)[N], int lane) const {
    const auto& call = read_again(call_);
    const auto column = row_ + 8 * r;
    const auto query = find_shared_column(call, walk.row, walk.task, column, Columns);
    const auto at = static_cast<std::int64_t>(walk.partial) * Columns + column;
    const auto ended = query.exists() ? end_softmax(call, query, reference[r], total) : softmax_end{0.0F, 0.0F};
    if (query.exists() && writes_sum) {
      if (walk.whole) {
        write_log_sum_exp(call, query, ended);
      } else {
        write_partial_sum(call, at, reference[r], total);
      }
    }
    PAGEDKV_UNROLL
    for (auto i = std::size_t{0}; i < N / 16; ++i) {
      const auto numbers = exchange(output, i * 16 + static_cast<std::size_t>(r) * 2, lane);
      const auto dim = first_dim + static_cast<std::int32_t>(i) * 32 + lane % 4 * 8;
      if (query.exists()) {
        if (walk.whole) {
          write_output<Numbers>(call, query, dim, numbers, ended.factor);
        } else {
          write_partial(call, at, dim, numbers);
        }
      }
    }
  }

  /// Combines over the lanes that share a row.
  template <class Combine>
  [[nodiscard]] static PAGEDKV_DEVICE float of_row(float value, Combine combine) {
    value = combine(value, shuffle_xor(value, 1, 32));
    return combine(value, shuffle_xor(value, 2, 32));
  }

 private:
  static constexpr int chunks = KeyDim / 8;

  [[nodiscard]] static PAGEDKV_DEVICE float scale_of(const attention_call& call) {
    return call.soft_cap > 0.0F ? call.scale : call.scale * log2_e;
  }

  /// Eight neighbouring lanes copy 128 neighbouring bytes of a query.
  PAGEDKV_DEVICE void copy_queries(const attention_call& call, const attention_walk& walk, int index) {
    for (auto column = index / 8; column < Columns; column += group_lanes / 8) {
      const auto query = find_shared_column(call, walk.row, walk.task, column, Columns);
      const auto& rows = call.queries;
      const auto at = query.exists() ? query.token * rows.token_stride + query.head * rows.head_stride : 0;
      const auto* const from = static_cast<const std::uint16_t*>(rows.data) + at;
      PAGEDKV_UNROLL
      for (auto chunk = 0; chunk < chunks; chunk += 8) {
        const auto of_lane = chunk + index % 8;
        copy_chunk(queries_ + query_rows::at(column, of_lane), from + of_lane * 8,
                   query.exists() && of_lane * 8 < call.view.head_dim);
      }
      if (index % 8 == 0) {
        put_float(of_factors_ + static_cast<unsigned>(column) * 4, scale_of(call));
      }
    }
  }

  /// Divides a query by the largest power of two in it, which keeps it within binary16.
  PAGEDKV_DEVICE void convert_query(const attention_call& call, const query_column& query, std::int32_t column,
                                    int lane) {
    constexpr auto chunks_of_lane = (chunks + 31) / 32;
    registers<float, chunks_of_lane, 8> numbers;
    auto largest = 0.0F;
    PAGEDKV_UNROLL
    for (auto j = 0; j < chunks_of_lane; ++j) {
      read_query<Numbers, 8>(call, query, (j * 32 + lane) * 8, numbers[j]);
      PAGEDKV_UNROLL
      for (auto i = 0; i < 8; ++i) {
        largest = fmaxf(largest, fabsf(numbers[j][i]));
      }
    }
    for (auto distance = 1; distance < 32; distance *= 2) {
      largest = fmaxf(largest, shuffle_xor(largest, distance, 32));
    }
    const auto exponent =
        static_cast<std::int32_t>(static_cast<lane_word>(__builtin_bit_cast(std::int32_t, largest)) >> 23) - 127;
    const auto usual = exponent >= -100 && exponent <= 100 ? exponent : 0;
    const auto down = __builtin_bit_cast(float, (127 - usual) << 23);
    PAGEDKV_UNROLL
    for (auto j = 0; j < chunks_of_lane; ++j) {
      const auto chunk = j * 32 + lane;
      registers<lane_word, 4> words;
      PAGEDKV_UNROLL
      for (auto i = 0; i < 4; ++i) {
        words[i] = pack<Number>(numbers[j][2 * i] * down, numbers[j][2 * i + 1] * down);
      }
      if (chunk < chunks) {
        put_chunk(queries_ + query_rows::at(column, chunk), words);
      }
    }
    if (lane == 0) {
      put_float(of_factors_ + static_cast<unsigned>(column) * 4,
                __builtin_bit_cast(float, (127 + usual) << 23) * scale_of(call));
    }
  }

  template <std::size_t N>
  PAGEDKV_DEVICE void apply_options(float (&scores)[N], std::int32_t first_token, std::int32_t end_token) const {
    if (call_.soft_cap > 0.0F) {
      PAGEDKV_UNROLL
      for (auto i = std::size_t{0}; i < N; ++i) {
        scores[i] = call_.soft_cap * log2_e * tanhf(scores[i] / call_.soft_cap);
      }
    }
    PAGEDKV_UNROLL
    for (auto i = std::size_t{0}; i < N; ++i) {
      const auto& rule = rules_[i / 2 % 2];
      const auto token = first_token + static_cast<std::int32_t>(i / 4 * 8 + i % 2);
      const auto biased = scores[i] + (rule.slope != 0.0F ? rule.bias(token) : 0.0F);
      const auto hidden = token >= end_token || branches_[i / 2 % 2].hide(token);
      scores[i] = hidden ? -INFINITY : rule.hide(biased, token);
    }
  }

  /// Eight neighbouring numbers of a row from four lanes, each of which has two of every eight.
  template <std::size_t N>
  [[nodiscard]] static PAGEDKV_DEVICE vector<float, 8> exchange(const float (&output)[N], std::size_t first, int lane) {
    auto numbers = vector<float, 8>{};
    PAGEDKV_UNROLL
    for (auto i = std::size_t{0}; i < 2; ++i) {
      registers<float, 4> own;
      PAGEDKV_UNROLL
      for (auto j = std::size_t{0}; j < 4; ++j) {
        own[j] = output[first + j * 4 + i];
      }
      // Rounds of exchanges between lanes whose numbers differ in one bit transpose four by four numbers.
      swap_over(own[0], own[1], 1, lane);
      swap_over(own[2], own[3], 1, lane);
      swap_over(own[0], own[2], 2, lane);
      swap_over(own[1], own[3], 2, lane);
      PAGEDKV_UNROLL
      for (auto j = std::size_t{0}; j < 4; ++j) {
        numbers.values[j * 2 + i] = own[j];
      }
    }
    return numbers;
  }

  /// The lane with the bit gives `low` and takes the other lane's `high`.
  static PAGEDKV_DEVICE void swap_over(float& low, float& high, int bit, int lane) {
    const auto upper = (lane & bit) != 0;
    const auto taken = shuffle_xor(upper ? low : high, bit, 32);
    low = upper ? taken : low;
    high = upper ? high : taken;
  }

  const attention_call& call_;
  unsigned queries_;
  unsigned of_factors_;
  int row_;
  registers<float, 2> factors_;
  registers<score_rule, 2> rules_;
  registers<hidden_branches, 2> branches_;
};

/// Where the two rows of a stage are that a lane copies. Block ids are read well before they are used.
class warpgroup_location {
 public:
  static constexpr int tokens = 64;

  PAGEDKV_DEVICE void find(const attention_call& shared_call, const divider<std::int32_t>& block_size,
                           const attention_walk& walk, std::int32_t first_token, bool in_piece, int index) {
    const auto& call = read_again(shared_call);
    const auto last = walk.row.num_tokens - 1;
    const auto unseen = walk.row.num_tokens - walk.row.num_queries - call.window + 1;
    const auto first = call.window > 0 && unseen > 0 ? unseen : 0;
    in_piece_ = in_piece;
    exists_ = in_piece && last >= 0;
    PAGEDKV_UNROLL
    for (auto half = 0; half < 2; ++half) {
      block_[half] = 0;
      offset_[half] = 0;
      if (exists_) {
        // A token that no query sees is replaced by the nearest one that is seen, so that no stale NaN enters.
        const auto wanted = first_token + index / 8 + half * (tokens / 2);
        const auto nearest = wanted < first ? first : (wanted > last ? last : wanted);
        const auto [block, offset] = block_size.split(nearest);
        offset_[half] = offset;
        block_[half] = static_cast<std::int32_t>(load(call.indices + walk.row.first_index + block));
      }
    }
  }

  [[nodiscard]] PAGEDKV_DEVICE bool in_piece() const { return in_piece_; }
  [[nodiscard]] PAGEDKV_DEVICE bool exists() const { return exists_; }

  /// The address `start` bytes, plus strides in numbers, after the block's start.
  [[nodiscard]] PAGEDKV_DEVICE const std::byte* row(const attention_call& call, int half, std::int64_t start,
                                                    std::int64_t token_stride, std::int32_t of_head) const {
    const auto number = offset_[half] * static_cast<std::int32_t>(token_stride) + of_head;
    return call.view.block(call.layer, block_[half]) + start + static_cast<std::int64_t>(number) * 2;
  }

 private:
  registers<std::int32_t, 2> block_;
  registers<std::int32_t, 2> offset_;
  bool in_piece_ = false;
  bool exists_ = false;
};

  #endif

}  // namespace pagedkv::kernels

#endif
