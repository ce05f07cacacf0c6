#pragma once

// The warpgroups that compute, in attention of prompts with products of warpgroups. Empty for other compilers.

#include <pagedkv/kernels/attention/warpgroup_buffers.hpp>

#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

  #include <pagedkv/kernels/attention/warpgroup_columns.hpp>

namespace pagedkv::kernels {

/// Computes 64 columns of one piece after the other. The products of keys of a stage and those of the values before it
/// run while the lanes turn scores into weights.
template <class Element, class Numbers, int KeyDim, int ValueDim>
class prefill_consumer {
  using shape = warpgroup_prefill_shape<Element, KeyDim, ValueDim>;
  using rows = typename shape::rows;
  using Number = prefill_number<Element, Numbers>;
  using column_state = warpgroup_columns<Numbers, shape::columns>;
  static constexpr int sums = shape::tokens / 2;  // scores of a lane
  using stages_of_piece = warpgroup_stages<shape::tokens>;
  using weight_words = registers<lane_word, shape::tokens / 16, 4>;
  /// Whether results pass through the queries' memory, which the next queries do not wait for.
  static constexpr bool keeps_queries = shape::query_buffers > 1;

 public:
  PAGEDKV_DEVICE prefill_consumer(const attention_call& call, int index)
      : lane_(index % 32), group_(index / warpgroup_lanes), columns_(call, index / 32 * 16 + index % 32 / 4) {}

  /// Waits for a piece from the warpgroup that copies. False: there is none.
  PAGEDKV_DEVICE bool attend_next() {
    buffers_.queries.wait_until_full(used_queries_);
    const auto piece = take_piece(buffers_.piece_at(used_queries_));
    if (piece.row.num_tasks == 0) {
      return false;
    }
    const auto stages = stages_of_piece(piece);
    begin(piece);
    if (stages.count > 0) {
      add(piece.row, stages);
    } else if (!keeps_queries) {
      buffers_.queries.empty(used_queries_).arrive();
    }
    used_stages_ += static_cast<unsigned>(stages.count);
    // Read again, which needs fewer registers than to keep it.
    finish(keeps_queries ? take_piece(buffers_.piece_at(used_queries_)) : piece);
    if (keeps_queries) {
      buffers_.queries.empty(used_queries_).arrive();
    }
    ++used_queries_;
    return true;
  }

 private:
  PAGEDKV_DEVICE void begin(const attention_piece& piece) {
    columns_.begin(piece, buffers_.columns_at(used_queries_));
    PAGEDKV_UNROLL
    for (auto i = 0; i < ValueDim / 2; ++i) {
      output_[i] = 0.0F;
    }
  }

  PAGEDKV_DEVICE void add(const attention_row& row, const stages_of_piece& stages) {
    registers<float, sums> scores = {};
    weight_words weights;
    registers<float, 2> rescale = {1.0F, 1.0F};
    buffers_.keys.wait_until_full(used_stages_);
    publish_to_products();
    multiply_keys(used_stages_, scores);
    wait_for_products<0>();
    settle(scores);
    arrive_by_wave(buffers_.keys.empty(used_stages_), lane_);
    auto rises = weigh(scores, row, stages, 0, rescale);
    // The loop begins with a wait: the compiler would move one in its middle before the arithmetic of `weigh`.
    for (auto stage = 1; stage < stages.count; ++stage) {
      const auto use = used_stages_ + static_cast<unsigned>(stage);
      end_values(use - 2, stage > 1);
      settle(scores);
      if (rises) {
        scale_rows(output_, rescale);
      }
      pack_weights<Number>(scores, weights);
      buffers_.keys.wait_until_full(use);
      buffers_.values.wait_until_full(use - 1);
      publish_to_products();
      multiply_keys(use, scores);
      multiply_values(use - 1, weights);
      wait_for_products<1>();
      settle(scores);
      arrive_by_wave(buffers_.keys.empty(use), lane_);
      rises = weigh(scores, row, stages, stage, rescale);
    }
    if (!keeps_queries) {
      buffers_.queries.empty(used_queries_).arrive();
    }
    const auto last = used_stages_ + static_cast<unsigned>(stages.count) - 1;
    end_values(last - 1, stages.count > 1);
    settle(scores);
    if (rises) {
      scale_rows(output_, rescale);
    }
    pack_weights<Number>(scores, weights);
    buffers_.values.wait_until_full(last);
    publish_to_products();
    multiply_values(last, weights);
    end_values(last, true);
  }

  /// Waits for the products of values, if there are any.
  PAGEDKV_DEVICE void end_values(unsigned use, bool any_values) {
    wait_for_products<0>();
    settle(output_);
    if (any_values) {
      arrive_by_wave(buffers_.values.empty(use), lane_);
    }
  }

  /// Starts the products of this warpgroup's queries and the keys of a stage.
  PAGEDKV_DEVICE void multiply_keys(unsigned use, registers<float, sums>& scores) const {
    const auto first = static_cast<unsigned>(group_ * columns_of_warpgroup * 128);
    const auto queries = shape::query_rows::describe(buffers_.queries_at(used_queries_) + first);
    const auto keys = rows::describe(buffers_.keys_at(use));
    settle(scores);
    begin_products();
    PAGEDKV_UNROLL
    for (auto block = 0U; block < shape::key_blocks; ++block) {
      PAGEDKV_UNROLL
      for (auto k = 0U; k < 4; ++k) {
        multiply_64x128<Number, false>(
            scores, queries + (block * shape::query_rows::block_bytes + k * next_numbers) / 16,
            keys + (block * rows::block_bytes + k * next_numbers) / 16, block + k > 0 ? 1 : 0);
      }
    }
    end_products();
  }

  /// Starts the products of weights and the values of a stage.
  PAGEDKV_DEVICE void multiply_values(unsigned use, const weight_words& weights) {
    const auto values = rows::describe(buffers_.values_at(use));
    settle(output_);
    begin_products();
    PAGEDKV_UNROLL
    for (auto k = 0U; k < shape::tokens / 16; ++k) {
      if constexpr (ValueDim == 64) {
        multiply_64x64<Number, true>(output_, weights[k], values + k * next_rows / 16, 1);
      } else {
        multiply_64x128<Number, true>(output_, weights[k], values + k * next_rows / 16, 1);
      }
    }
    end_products();
  }

  [[nodiscard]] PAGEDKV_DEVICE bool weigh(registers<float, sums>& scores, const attention_row& row,
                                          const stages_of_piece& stages, std::int32_t stage,
                                          registers<float, 2>& rescale) {
    if constexpr (Element::scaled) {
      scale_tokens(scores, buffers_.key_scales_at(used_stages_ + static_cast<unsigned>(stage)), lane_);
    }
    registers<float, 2> factors;
    const auto rises = columns_.refer(scores, row, stages.first_token + stage * shape::tokens, stages.end_token, lane_,
                                      factors, rescale);
    columns_.weigh(0, scores, factors);
    columns_.weigh(1, scores, factors);
    return rises;
  }

  PAGEDKV_DEVICE void finish(const attention_piece& piece) {
    registers<float, 2> totals;
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      totals[r] = column_state::of_row(columns_.sum[r], [](float a, float b) { return a + b; });
    }
    if constexpr (has_static_scales<Element>) {
      const auto scale = columns_.template value_scale<Element>(piece);
      scale_rows(output_, {scale, scale});
    }
    const auto lane = compute_again(lane_);
    if (keeps_queries && columns_.has_short_rows(piece)) {
      wait_for_warpgroup(group_);  // its products have read the queries
      columns_.template write_rows<typename shape::query_rows>(
          buffers_.queries_at(used_queries_), buffers_.columns_at(used_queries_), totals, output_, lane);
      return;
    }
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      const auto ended = columns_.end(piece, r, totals[r], lane % 4 == 0);
      columns_.write(piece, r, ended, 0, columns_.output_dim(), output_, lane);
    }
  }

  int lane_;
  int group_;
  column_state columns_;
  prefill_buffers<shape> buffers_;
  unsigned used_queries_ = 0;
  unsigned used_stages_ = 0;
  registers<float, ValueDim / 2> output_;
};

}  // namespace pagedkv::kernels

#endif
