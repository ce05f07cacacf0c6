#pragma once

// Rules and results of the columns of attention with products of warpgroups. Empty for other compilers.

#include <pagedkv/kernels/attention/warpgroup_nvidia.hpp>

#if defined(__CUDACC__) && !defined(__HIPCC__)

  #include <pagedkv/kernels/attention/launcher.hpp>
  #include <pagedkv/kernels/attention/result.hpp>
  #include <pagedkv/kernels/attention/walk.hpp>
  #include <pagedkv/kernels/attention/warpgroup_barriers.hpp>
  #include <pagedkv/kernels/attention/warpgroup_buffers.hpp>

namespace pagedkv::kernels {

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

/// Numbers of products, as the next products take them from registers.
template <class Number, std::size_t N>
PAGEDKV_DEVICE void pack_weights(const float (&numbers)[N], lane_word (&words)[N / 8][4]) {
  PAGEDKV_UNROLL
  for (auto i = std::size_t{0}; i < N / 2; ++i) {
    words[i / 4][i % 4] = pack<Number>(numbers[i * 2], numbers[i * 2 + 1]);
  }
}

/// Scales the two rows of a lane.
template <std::size_t N>
PAGEDKV_DEVICE void scale_rows(float (&output)[N], const registers<float, 2>& factors) {
  PAGEDKV_UNROLL
  for (auto i = std::size_t{0}; i < N; ++i) {
    output[i] *= factors[i / 2 % 2];
  }
}

/// The rules of a lane's two columns.
struct warpgroup_rules {
  registers<score_rule, 2> rules;
  registers<hidden_branches, 2> branches;

  /// `of_columns`: of the task's columns, an address in shared memory; `first`: the lane's first column.
  [[nodiscard]] static PAGEDKV_DEVICE warpgroup_rules of(const attention_call& call, const attention_row& row,
                                                         unsigned of_columns, int first) {
    auto of_lane = warpgroup_rules{};
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      of_lane.find(call, row, r, take_column(of_columns, first + 8 * r).query);
    }
    return of_lane;
  }

  PAGEDKV_DEVICE void find(const attention_call& call, const attention_row& row, int r, const query_column& column) {
    rules[r] = score_rule::of(call, column);
    if (!column.exists()) {
      rules[r].last_token = INT32_MAX;  // no mask: its results are not written
    }
    branches[r] = hidden_branches::of(call, row, column);
  }
};

/// The columns of a piece, of which a lane has the rows `row` and `row + 8` of products. `Columns`: of a task.
/// `TakesAgain`: rules are taken again from shared memory where a score needs them, and registers do not keep them.
template <class Numbers, int Columns, bool TakesAgain = false>
class warpgroup_columns {
 public:
  registers<float, 2> reference;
  registers<float, 2> sum;

  PAGEDKV_DEVICE warpgroup_columns(const attention_call& call, int row) : call_(call), row_(row) {}

  /// The same row as before, where no register keeps it.
  PAGEDKV_DEVICE void set_row(int row) { row_ = row; }

  /// `of_columns`: of the task's columns, an address in shared memory.
  PAGEDKV_DEVICE void begin(const attention_piece& piece, unsigned of_columns) {
    const auto& call = read_again(call_);
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      const auto [column, factor] = take_column(of_columns, row_ + 8 * r);
      rules_.find(call, piece.row, r, column);
      factors_[r] = factor;
      reference[r] = -INFINITY;
      sum[r] = 0.0F;
    }
    if constexpr (TakesAgain) {
      const auto& [first, second] = rules_.rules;
      seen_first_ = first.first_token > second.first_token ? first.first_token : second.first_token;
      seen_last_ = first.last_token < second.last_token ? first.last_token : second.last_token;
      of_columns_ = of_columns;
    }
  }

  /// Turns products into scores up to a factor for each row. If a reference rises, outputs so far are to be scaled.
  /// Product `i` of a lane: row `i / 2 % 2`, token `i / 4 * 8 + i % 2` of those from `first_token` + 2 * (lane % 4) on.
  /// With lists, tokens are counted like tiles. `Row`: becomes an `attention_row`.
  template <std::size_t N, class Row>
  [[nodiscard]] PAGEDKV_DEVICE bool refer(float (&scores)[N], const Row& row, std::int32_t first_token,
                                          std::int32_t end_token, int lane, registers<float, 2>& factors,
                                          registers<float, 2>& rescale) {
    registers<float, 2> largest;
    score(scores, row, first_token, end_token, lane, factors);
    const auto rises = any(find_largest(scores, factors, largest)) != 0;
    if (rises) {
      PAGEDKV_UNROLL
      for (auto r = 0; r < 2; ++r) {
        rescale[r] = raise(r, of_row(largest[r], [](float a, float b) { return fmaxf(a, b); }));
      }
    }
    return rises;
  }

  /// Turns the scores of row `r` into weights, and adds them to its sum.
  template <std::size_t N>
  PAGEDKV_DEVICE void weigh(std::size_t r, float (&scores)[N], const registers<float, 2>& factors) {
    const auto subtracted = reference[r] == -INFINITY ? 0.0F : reference[r];
    registers<float, 2> added = {};
    PAGEDKV_UNROLL
    for (auto i = std::size_t{0}; i < N / 2; ++i) {
      auto& number = scores[i / 2 * 4 + r * 2 + i % 2];
      number = power_of_two(number * factors[r] - subtracted);
      added[i % 2] += number;
    }
    sum[r] += added[0] + added[1];
  }

  /// Raises a reference; the factor of sums and outputs so far.
  [[nodiscard]] PAGEDKV_DEVICE float raise(int r, float largest) {
    const auto raised = fmaxf(reference[r], largest);
    const auto factor = raised == -INFINITY ? 1.0F : power_of_two(reference[r] - raised);
    reference[r] = raised;
    sum[r] *= factor;
    return factor;
  }

  /// Where a row's numbers go, and what they are multiplied with.
  struct row_end {
    query_column query;
    float factor;          // of the numbers of a whole task
    std::int64_t partial;  // column among partial results, if the piece is not a whole task
  };

  /// Ends the softmax of row `r`. Writes its sum if `writes_sum`.
  [[nodiscard]] PAGEDKV_DEVICE row_end end(const attention_piece& piece, int r, float total, bool writes_sum) const {
    const auto query = find_shared_column(read_again(call_), piece.row, piece.task, row_ + 8 * r, Columns);
    return end(piece, r, query, total, writes_sum);
  }
  /// The same where the column's query is known.
  [[nodiscard]] PAGEDKV_DEVICE row_end end(const attention_piece& piece, int r, const query_column& query, float total,
                                           bool writes_sum) const {
    const auto& call = read_again(call_);
    const auto column = row_ + 8 * r;
    const auto partial = static_cast<std::int64_t>(piece.partial) * Columns + column;
    const auto ended = query.exists() ? end_softmax(call, query, reference[r], total) : softmax_end{0.0F, 0.0F};
    if (query.exists() && writes_sum) {
      if (piece.whole) {
        write_log_sum_exp(call, query, ended);
      } else {
        write_partial_sum(call, partial, reference[r], total);
      }
    }
    return {query, ended.factor, partial};
  }

  /// The static scale of a piece's values.
  template <class Element>
  [[nodiscard]] PAGEDKV_DEVICE float value_scale(const attention_piece& piece) const {
    return static_value_scale<Element>(read_again(call_), piece);
  }

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t output_dim() const { return read_again(call_).output.dim; }

  /// Writes `count` numbers of row `r` from `first_dim` on. Outputs `i` of a lane: dimensions `i / 4 * 8 + i % 2` + 2 *
  /// (lane % 4) of row `i / 2 % 2`.
  template <std::size_t N>
  PAGEDKV_DEVICE void write(const attention_piece& piece, int r, const row_end& ended, std::int32_t first_dim,
                            std::int32_t count, const float (&output)[N], int lane) const {
    const auto& call = read_again(call_);
    if (!piece.whole) {
      if (ended.query.exists()) {
        auto* const to = call.partials + ended.partial * call.partial_stride + first_dim;
        write_pairs(to, r, count, output, lane);
      }
      return;
    }
    registers<vector<float, 8>, static_cast<int>(N / 16)> numbers;
    PAGEDKV_UNROLL
    for (auto i = std::size_t{0}; i < N / 16; ++i) {
      numbers[i] = exchange(output, i * 16 + static_cast<std::size_t>(r) * 2, lane);
    }
    if (ended.query.exists()) {
      write_outputs<Numbers>(call, ended.query, first_dim + lane % 4 * 8, 32, numbers, ended.factor);
    }
  }

  /// Writes the numbers of both rows of a whole task from `first_dim` on as 16 bits each, all of which exist. They pass
  /// through 512 bytes of shared memory at `own` that the wave has for itself, sixteen of each row at a time. Fewer
  /// instructions than an exchange between lanes.
  template <std::size_t N>
  PAGEDKV_DEVICE void write_short(const registers<row_end, 2>& ended, std::int32_t first_dim, const float (&output)[N],
                                  unsigned own, int lane) const {
    const auto& call = read_again(call_);
    if (call.output.type == number_type::float16) {
      write_short_as<typename Numbers::half>(call, ended, first_dim, output, own, lane);
    } else {
      write_short_as<typename Numbers::brain>(call, ended, first_dim, output, own, lane);
    }
  }

  /// Whether `write_rows` or `write_short` writes the results of a piece.
  [[nodiscard]] PAGEDKV_DEVICE bool has_short_rows(const attention_piece& piece) const {
    const auto& rows = read_again(call_).output;
    return piece.whole && rows.aligned && rows.type != number_type::float32;
  }

  /// Writes the results of a whole task as rows of 16-bit numbers. `rows_at` and `of_columns`: of the task's columns,
  /// addresses in shared memory. The rows of `Rows` may be overwritten; each wave has its own. Fewer instructions than
  /// an exchange between lanes.
  template <class Rows, std::size_t N>
  PAGEDKV_DEVICE void write_rows(unsigned rows_at, unsigned of_columns, const registers<float, 2>& totals,
                                 const float (&output)[N], int lane) const {
    const auto& call = read_again(call_);
    const auto row = compute_again(row_);
    registers<float, 2> factors;
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      const auto query = take_column(of_columns, row + 8 * r).query;
      const auto ended = query.exists() ? end_softmax(call, query, reference[r], totals[r]) : softmax_end{0.0F, 0.0F};
      if (query.exists() && lane % 4 == 0) {
        write_log_sum_exp(call, query, ended);
      }
      factors[r] = ended.factor;
    }
    if (call.output.type == number_type::float16) {
      put_rows<Rows, typename Numbers::half>(rows_at, row, factors, output, lane);
    } else {
      put_rows<Rows, typename Numbers::brain>(rows_at, row, factors, output, lane);
    }
    __syncwarp();
    constexpr auto chunks = static_cast<int>(N / 4);
    const auto chunk = lane % chunks;
    const auto first = row - lane / 4 + lane / chunks;
    const auto from = rows_at + Rows::at(first, chunk);
    PAGEDKV_UNROLL
    for (auto i = 0; i < 16; i += 32 / chunks) {
      const auto query = take_column(of_columns, first + i).query;
      registers<lane_word, 4> words;
      take_chunk(permuted(from, i) + static_cast<unsigned>(i) * 128, words);
      if (query.exists() && chunk * 8 < call.output.dim) {
        const auto at = query.token * call.output.token_stride + query.head * call.output.head_stride + chunk * 8;
        store_vector<4>(reinterpret_cast<lane_word*>(static_cast<std::uint16_t*>(call.output.data) + at),
                        {words[0], words[1], words[2], words[3]});
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
  /// Puts the rows of a wave into shared memory; `row`: the lane's first.
  template <class Rows, class Number, std::size_t N>
  static PAGEDKV_DEVICE void put_rows(unsigned rows_at, int row, const registers<float, 2>& factors,
                                      const float (&output)[N], int lane) {
    const auto to = rows_at + Rows::at(row - lane / 4 + lane % 16, lane / 16);
    PAGEDKV_UNROLL
    for (auto i = std::size_t{0}; i < N / 8; ++i) {
      registers<lane_word, 4> words;
      PAGEDKV_UNROLL
      for (auto j = std::size_t{0}; j < 4; ++j) {
        words[j] = pack_scaled<Number>(output[i * 8 + j * 2], output[i * 8 + j * 2 + 1], factors[j % 2]);
      }
      put_matrices(permuted(to, static_cast<int>(i) * 2) + static_cast<unsigned>(i / 4) * Rows::block_bytes, words);
    }
  }

  /// The address of a chunk in a row whose index, or of the chunk whose index, differs in these bits.
  [[nodiscard]] static PAGEDKV_DEVICE unsigned permuted(unsigned chunk, int bits) {
    return chunk ^ static_cast<unsigned>(bits % 8) * vector_bytes;
  }

  /// Turns products into scores up to a factor for each row.
  template <std::size_t N, class Row>
  PAGEDKV_DEVICE void score(float (&scores)[N], const Row& row, std::int32_t first_token, std::int32_t end_token,
                            int lane, registers<float, 2>& factors) const {
    if (call_.lists.exist()) {
      score_listed(scores, row, first_token, end_token, lane);
      factors[0] = 1.0F;
      factors[1] = 1.0F;
      return;
    }
    const auto last = first_token + static_cast<std::int32_t>(N) * 2 - 1;
    const auto seen = [&](int r) {
      return rules_.rules[r].first_token <= first_token && last <= rules_.rules[r].last_token;
    };
    const auto partly =
        last >= end_token || (TakesAgain ? first_token < seen_first_ || last > seen_last_ : !seen(0) || !seen(1));
    factors[0] = factors_[0];
    factors[1] = factors_[1];
    if (any(partly) != 0 || call_.soft_cap > 0.0F || call_.alibi_slopes != nullptr || call_.scale < 0.0F) {
      apply_options(scores, first_token + lane % 4 * 2, end_token, rules_of(row));
      factors[0] = 1.0F;
      factors[1] = 1.0F;
    }
  }

  /// The largest score of each row of this lane; whether a reference has to grow.
  template <std::size_t N>
  [[nodiscard]] PAGEDKV_DEVICE bool find_largest(const float (&scores)[N], const registers<float, 2>& factors,
                                                 registers<float, 2>& largest) const {
    constexpr auto headroom = 8.0F;
    PAGEDKV_UNROLL
    for (auto r = std::size_t{0}; r < 2; ++r) {
      largest[r] = -INFINITY;
      PAGEDKV_UNROLL
      for (auto i = std::size_t{0}; i < N / 2; ++i) {
        largest[r] = fmaxf(largest[r], scores[i / 2 * 4 + r * 2 + i % 2]);
      }
      largest[r] *= factors[r];
    }
    return largest[0] > reference[0] + headroom || largest[1] > reference[1] + headroom;
  }

  /// Scores of rows with lists, a tile at a time: what follows a tile in the list may be anywhere in the sequence.
  template <std::size_t N>
  PAGEDKV_DEVICE void score_listed(float (&scores)[N], const attention_row& row, std::int32_t first_place,
                                   std::int32_t end_place, int lane) const {
    constexpr auto of_tile = std::size_t{8};  // scores of a lane
    const auto& rules = rules_of(row);
    PAGEDKV_UNROLL
    for (auto tile = std::size_t{0}; tile < N / of_tile; ++tile) {
      const auto place = first_place + static_cast<std::int32_t>(tile) * attention_tile;
      const auto token = place < end_place ? first_token_of(call_, row, place / attention_tile) : skipped_tokens;
      registers<float, of_tile> own;
      PAGEDKV_UNROLL
      for (auto i = std::size_t{0}; i < of_tile; ++i) {
        own[i] = scores[tile * of_tile + i];
      }
      apply_options(own, token + lane % 4 * 2, row.num_tokens, rules);
      PAGEDKV_UNROLL
      for (auto i = std::size_t{0}; i < of_tile; ++i) {
        scores[tile * of_tile + i] = own[i];
      }
    }
  }

  [[nodiscard]] PAGEDKV_DEVICE decltype(auto) rules_of(const attention_row& row) const {
    if constexpr (TakesAgain) {
      return warpgroup_rules::of(call_, row, of_columns_, row_);
    } else {
      return (rules_);
    }
  }

  template <std::size_t N>
  PAGEDKV_DEVICE void apply_options(float (&scores)[N], std::int32_t first_token, std::int32_t end_token,
                                    const warpgroup_rules& of_lane) const {
    const auto& [rules, branches] = of_lane;
    PAGEDKV_UNROLL
    for (auto i = std::size_t{0}; i < N; ++i) {
      scores[i] *= factors_[i / 2 % 2];
    }
    if (call_.soft_cap > 0.0F) {
      // c * tanh(x / c) = c - 2 * c / (exp(2 * x / c) + 1)
      const auto cap = call_.soft_cap * log2_e;
      const auto doubled = 2.0F * log2_e / call_.soft_cap;
      PAGEDKV_UNROLL
      for (auto i = std::size_t{0}; i < N; ++i) {
        scores[i] = cap - __fdividef(2.0F * cap, power_of_two(scores[i] * doubled) + 1.0F);
      }
    }
    const auto token_of = [](std::size_t i) { return static_cast<std::int32_t>(i / 4 * 8 + i % 2); };
    if (call_.alibi_slopes != nullptr) {
      PAGEDKV_UNROLL
      for (auto i = std::size_t{0}; i < N; ++i) {
        scores[i] += rules[i / 2 % 2].bias(first_token + token_of(i));
      }
    }
    if (call_.tree_masks != nullptr) {
      PAGEDKV_UNROLL
      for (auto i = std::size_t{0}; i < N; ++i) {
        scores[i] = branches[i / 2 % 2].hide(first_token + token_of(i)) ? -INFINITY : scores[i];
      }
    }
    PAGEDKV_UNROLL
    for (auto r = std::size_t{0}; r < 2; ++r) {
      const auto& rule = rules[r];
      const auto first = rule.first_token - first_token;
      const auto last = (rule.last_token < end_token ? rule.last_token : end_token - 1) - first_token;
      PAGEDKV_UNROLL
      for (auto j = std::size_t{0}; j < N / 2; ++j) {
        const auto i = j / 2 * 4 + r * 2 + j % 2;
        scores[i] = token_of(i) >= first && token_of(i) <= last ? scores[i] : -INFINITY;
      }
    }
  }

  /// Four neighbouring lanes write 32 bytes.
  template <std::size_t N>
  static PAGEDKV_DEVICE void write_pairs(float* to, int r, std::int32_t count, const float (&output)[N], int lane) {
    const auto own = lane % 4 * 2;
    auto* const to_own = to + own;
    PAGEDKV_UNROLL
    for (auto i = std::size_t{0}; i < N / 4; ++i) {
      if (own + static_cast<std::int32_t>(i) * 8 < count) {
        const auto first = i * 4 + static_cast<std::size_t>(r) * 2;
        store_vector<2>(to_own + i * 8, {output[first], output[first + 1]});
      }
    }
  }

  template <class Number, std::size_t N>
  static PAGEDKV_DEVICE void write_short_as(const attention_call& call, const registers<row_end, 2>& ended,
                                            std::int32_t first_dim, const float (&output)[N], unsigned own, int lane) {
    // Each lane puts a row of one of four 8 x 8 matrices, and takes half of a row of 16 numbers.
    const auto put_at = own + static_cast<unsigned>(lane % 16 * 32 + lane / 16 * 16);
    const auto take_at = own + static_cast<unsigned>(lane) * vector_bytes;
    const auto row = lane / 2;
    const auto from_row = [&](auto number) {
      const auto first = shuffle(number(0), row % 8 * 4);
      const auto second = shuffle(number(1), row % 8 * 4);
      return row < 8 ? first : second;
    };
    const auto exists = from_row([&](int r) { return static_cast<int>(ended[r].query.exists()); }) != 0;
    const auto token = from_row([&](int r) { return ended[r].query.token; });
    const auto head = from_row([&](int r) { return ended[r].query.head; });
    const auto at = token * call.output.token_stride + head * call.output.head_stride + first_dim + lane % 2 * 8;
    auto* const to = static_cast<std::uint16_t*>(call.output.data) + at;
    PAGEDKV_UNROLL
    for (auto i = std::size_t{0}; i < N; i += 8) {
      registers<lane_word, 4> words;
      PAGEDKV_UNROLL
      for (auto j = std::size_t{0}; j < 4; ++j) {
        words[j] = pack_scaled<Number>(output[i + j * 2], output[i + j * 2 + 1], ended[j % 2].factor);
      }
      __syncwarp();
      put_matrices(put_at, words);
      __syncwarp();
      take_chunk(take_at, words);
      if (exists) {
        store_vector<4>(reinterpret_cast<lane_word*>(to + i * 2), {words[0], words[1], words[2], words[3]});
      }
    }
  }

  /// Zeros if the factor is zero, because the numbers of a query that read no token may hold any bits.
  template <class Number>
  [[nodiscard]] static PAGEDKV_DEVICE lane_word pack_scaled(float first, float second, float factor) {
    const auto word = pack<Number>(first * factor, second * factor);
    return factor == 0.0F ? 0 : word;
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
  int row_;
  registers<float, 2> factors_;
  warpgroup_rules rules_;
  std::int32_t seen_first_ = 0;  // both columns see the tokens from this one to the last one
  std::int32_t seen_last_ = 0;
  unsigned of_columns_ = 0;
};

  #endif

}  // namespace pagedkv::kernels

#endif
