#pragma once

// The warpgroups that compute, in attention over latent vectors with products of warpgroups. Empty for other compilers.

#include <pagedkv/kernels/attention/warpgroup_latent_buffers.hpp>

#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

  #include <pagedkv/kernels/attention/packed_chunk.hpp>
  #include <pagedkv/kernels/attention/warpgroup_columns.hpp>

namespace pagedkv::kernels {

/// Computes the weights of every second stage, and half of the output's numbers: the other warpgroup's weights come
/// through shared memory. While one turns scores into weights, the other's products run.
template <class Element, class Numbers>
class latent_consumer {
  using shape = warpgroup_latent_shape<Element>;
  using rows = shape::rows;
  using query_rows = shape::query_rows;
  using Number = typename Numbers::template of_products<typename expanded<Element>::element>;
  using column_state = warpgroup_columns<Numbers, shape::columns>;
  using stages_of_piece = warpgroup_stages<shape::tokens>;
  using weight_words = registers<lane_word, shape::tokens / 16, 4>;
  using stage_scores = registers<float, shape::tokens / 2>;

 public:
  /// `index`: of the lane among those that compute.
  PAGEDKV_DEVICE latent_consumer(const attention_call& call, int index)
      : index_(index % warpgroup_lanes),
        lane_(index % 32),
        group_(static_cast<int>(of_wave(static_cast<unsigned>(index / warpgroup_lanes)))),
        row_(index_ / 32 * 16 + lane_ / 4),
        columns_(call, row_) {}

  /// Until the warpgroup that copies says that no piece follows.
  PAGEDKV_DEVICE void attend() {
    for (;; ++used_queries_) {
      buffers_.queries.wait_until_full(used_queries_);
      const auto piece = take_piece(buffers_.piece_at(used_queries_));
      if (piece.row.num_tasks == 0) {
        break;
      }
      attend(piece);
    }
  }

 private:
  PAGEDKV_DEVICE void attend(const attention_piece& piece) {
    const auto stages = stages_of_piece(piece);
    columns_.begin(piece, buffers_.columns_at(used_queries_));
    take_rotated_queries();
    if (stages.count <= group_) {
      buffers_.queries.empty(used_queries_).arrive();
    }
    add(piece.row, stages);
    used_stages_ = of_wave(used_stages_ + static_cast<unsigned>(stages.count));
    finish(take_piece(buffers_.piece_at(used_queries_)));  // again: the loop needs the registers
  }

  /// Takes the numbers of queries that only keys are multiplied with. Shared memory is busier than the units that
  /// multiply: products of 32 tokens read twice as many bytes of queries as of keys.
  PAGEDKV_DEVICE void take_rotated_queries() {
    if constexpr (shape::keeps_rotated_queries) {
      const auto row = compute_again(row_);
      PAGEDKV_UNROLL
      for (auto k = 0; k < 4; ++k) {
        PAGEDKV_UNROLL
        for (auto i = 0; i < 4; ++i) {
          const auto chunk = shape::keys_only * shape::value_blocks * 8 + k * 2 + i / 2;
          const auto at = query_rows::at(row + i % 2 * 8, chunk) + static_cast<unsigned>(lane_ % 4) * 4;
          rotated_queries_[k][i] = take_word(buffers_.base + shape::queries + at);
        }
      }
    }
  }

  /// The products of keys of a stage, and those of the values before it, run beside the other warpgroup's arithmetic.
  /// The first stage is in the loop, too: code of its own would be fetched once a piece.
  PAGEDKV_DEVICE void add(const attention_row& row, const stages_of_piece& stages) {
    auto stage = group_;
    for (; stage < stages.count; stage += 2) {
      stage_scores scores;
      multiply_keys(stage, scores);
      if (stage > 0) {
        add_weighed(stage - 1);
        wait_for_products<1>();
      } else {
        wait_for_products<0>();
      }
      weigh(row, stages, stage, scores);
    }
    if (stage == stages.count && stage > 0) {
      add_weighed(stage - 1);
      end_values(stage - 1);
    }
  }

  /// Turns products of keys into weights, gives them to the other warpgroup, and adds their values. Halfway, the
  /// products of the values before have probably ended.
  PAGEDKV_DEVICE void weigh(const attention_row& row, const stages_of_piece& stages, std::int32_t stage,
                            stage_scores& scores) {
    settle(scores);
    arrive_by_wave(buffers_.part(shape::keys_only).empty(use_of(stage)), lane_);
    if (stage + 2 >= stages.count) {
      buffers_.queries.empty(used_queries_).arrive();
    }
    registers<float, 2> factors;
    registers<float, 2> rescale = {1.0F, 1.0F};
    const auto rises = columns_.refer(scores, row, stages.first_token + stage * shape::tokens, stages.end_token, lane_,
                                      factors, rescale);
    columns_.weigh(0, scores, factors);
    end_values(stage - 1);
    columns_.weigh(1, scores, factors);
    weight_words weights;
    pack_weights<Number>(scores, weights);
    share(weights);
    if (rises) {
      scale_output(rescale);
    }
    multiply_values(stage, weights);
    end_values(stage);
  }

  /// Gives the other warpgroup weights and their references: its lanes hold the same places of products.
  PAGEDKV_DEVICE void share(const weight_words& weights) const {
    PAGEDKV_UNROLL
    for (auto i = 0; i < shape::tokens / 16; ++i) {
      put_chunk(shared_weights(i), weights[i]);
    }
    if (lane_ % 4 == 0) {
      PAGEDKV_UNROLL
      for (auto r = 0; r < 2; ++r) {
        put_float(reference_at(r), columns_.reference[r]);
      }
    }
    buffers_.weights_of(group_).arrive();
  }

  /// Starts the products of values of the other warpgroup's stage.
  PAGEDKV_DEVICE void add_weighed(std::int32_t stage) {
    buffers_.weights_of(1 - group_).wait(taken_weights_ % 2);
    ++taken_weights_;
    weight_words weights;
    PAGEDKV_UNROLL
    for (auto i = 0; i < shape::tokens / 16; ++i) {
      take_chunk(shared_weights(i), weights[i]);
    }
    registers<float, 2> references;
    auto rises = false;
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      references[r] = take_float(reference_at(r));
      rises = rises || references[r] > columns_.reference[r];
    }
    if (any(rises) != 0) {
      registers<float, 2> rescale;
      PAGEDKV_UNROLL
      for (auto r = 0; r < 2; ++r) {
        rescale[r] = columns_.raise(r, references[r]);
      }
      scale_output(rescale);
    }
    buffers_.part(group_).wait_until_full(use_of(stage));
    publish_to_products();
    multiply_values(stage, weights);
  }

  PAGEDKV_DEVICE void scale_output(const registers<float, 2>& factors) {
    PAGEDKV_UNROLL
    for (auto half = 0; half < 2; ++half) {
      scale_rows(output_[half], factors);
    }
  }

  /// Starts the products of queries and keys of a stage.
  PAGEDKV_DEVICE void multiply_keys(std::int32_t stage, stage_scores& scores) const {
    PAGEDKV_UNROLL
    for (auto part = 0; part < shape::parts; ++part) {
      buffers_.part(part).wait_until_full(use_of(stage));
    }
    publish_to_products();
    begin_products();
    PAGEDKV_UNROLL
    for (auto part = 0; part < shape::parts; ++part) {
      const auto first_block = static_cast<unsigned>(part * shape::value_blocks);
      const auto queries = query_rows::describe(buffers_.base + shape::queries + first_block * query_rows::block_bytes);
      const auto keys = rows::describe(buffers_.part_at(use_of(stage), part));
      PAGEDKV_UNROLL
      for (auto block = 0U; block < static_cast<unsigned>(shape::blocks_of(part)); ++block) {
        PAGEDKV_UNROLL
        for (auto k = 0U; k < 4; ++k) {
          const auto keys_of_product = later(keys, block * rows::block_bytes + k * next_numbers);
          if constexpr (shape::keeps_rotated_queries) {
            if (part == shape::keys_only) {
              multiply_64x32<Number, false>(scores, rotated_queries_[k], keys_of_product, 1);
              continue;
            }
          }
          multiply_64x32<Number, false>(scores, later(queries, block * query_rows::block_bytes + k * next_numbers),
                                        keys_of_product, first_block + block + k > 0 ? 1 : 0);
        }
      }
    }
    end_products();
  }

  /// Starts the products of weights and this warpgroup's half of a stage's values. Those of the first stage replace
  /// what the output has been.
  PAGEDKV_DEVICE void multiply_values(std::int32_t stage, const weight_words& weights) {
    const auto values = rows::describe(buffers_.part_at(use_of(stage), group_));
    settle(output_[0]);
    settle(output_[1]);
    begin_products();
    PAGEDKV_UNROLL
    for (auto k = 0U; k < shape::tokens / 16; ++k) {
      PAGEDKV_UNROLL
      for (auto half = 0U; half < 2; ++half) {
        multiply_64x128<Number, true>(output_[half], weights[k],
                                      later(values, half * 2 * rows::block_bytes + k * next_rows),
                                      stage > 0 || k > 0 ? 1 : 0);
      }
    }
    end_products();
  }

  /// Waits for all products, and releases the values of a stage, unless its number is negative.
  PAGEDKV_DEVICE void end_values(std::int32_t stage) {
    wait_for_products<0>();
    if (stage >= 0) {
      arrive_by_wave(buffers_.part(group_).empty(use_of(stage)), lane_);
    }
    settle(output_[0]);
    settle(output_[1]);
  }

  /// Has few instructions: code that runs once a piece waits for most of them to be fetched.
  PAGEDKV_DEVICE void finish(const attention_piece& piece) {
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      columns_.sum[r] = column_state::of_row(columns_.sum[r], [](float a, float b) { return a + b; });
      if (lane_ % 4 == 0) {
        put_float(sum_at(group_, r), columns_.sum[r]);
      }
    }
    wait_for_consumers<shape::consumers * warpgroup_lanes>();
    const auto lane = compute_again(lane_);
    registers<typename column_state::row_end, 2> ended;
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      const auto total = columns_.sum[r] + take_float(sum_at(1 - group_, r));
      const auto query = take_column(buffers_.columns_at(used_queries_), compute_again(row_) + 8 * r).query;
      ended[r] = columns_.end(piece, r, query, total, lane % 4 == 0 && group_ == 0);
    }
    PAGEDKV_UNROLL
    for (auto half = 0; half < 2; ++half) {
      const auto first_dim = group_ * half_of_values + half * 128;
      if (columns_.has_short_rows(piece)) {
        columns_.write_short(ended, first_dim, output_[half], outputs_at(), lane);
      } else {
        PAGEDKV_UNROLL
        for (auto r = 0; r < 2; ++r) {
          columns_.write(piece, r, ended[r], first_dim, 128, output_[half], lane);
        }
      }
    }
    wait_for_consumers<shape::consumers * warpgroup_lanes>();  // the next weights overwrite outputs
  }

  [[nodiscard]] PAGEDKV_DEVICE unsigned use_of(std::int32_t stage) const {
    return used_stages_ + static_cast<unsigned>(stage);
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned shared_weights(int i) const {
    return buffers_.base + shape::weights + static_cast<unsigned>(i * warpgroup_lanes + index_) * vector_bytes;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned reference_at(int r) const {
    return buffers_.base + shape::references + static_cast<unsigned>(row_ + 8 * r) * 4;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned sum_at(int group, int r) const {
    return buffers_.base + shape::sums + static_cast<unsigned>(group * shape::columns + row_ + 8 * r) * 4;
  }
  /// The wave's part of the memory of weights, through which outputs pass.
  [[nodiscard]] PAGEDKV_DEVICE unsigned outputs_at() const {
    constexpr auto waves = shape::consumers * warpgroup_lanes / 32;
    constexpr auto bytes = shape::columns * shape::tokens * 2 / waves;
    static_assert(bytes == 512);
    return buffers_.base + shape::weights + static_cast<unsigned>(group_ * waves / 2 + index_ / 32) * bytes;
  }

  static constexpr int half_of_values = largest_value_dim / shape::consumers;

  int index_;
  int lane_;
  int group_;
  int row_;  // of products: the lane's first column; the second is 8 later
  column_state columns_;
  latent_buffers<Element> buffers_;
  unsigned used_queries_ = 0;
  unsigned used_stages_ = 0;
  unsigned taken_weights_ = 0;
  registers<float, 2, 64> output_;
  registers<lane_word, 4, 4> rotated_queries_;
};

}  // namespace pagedkv::kernels

#endif
