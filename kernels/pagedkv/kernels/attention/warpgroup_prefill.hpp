#pragma once

#include <pagedkv/kernels/attention/launcher.hpp>
#include <pagedkv/kernels/attention/warpgroup_buffers.hpp>
#include <pagedkv/kernels/attention/warpgroup_producer.hpp>

#include <cstddef>

#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

  #include <pagedkv/kernels/attention/tile_reader.hpp>
  #include <pagedkv/kernels/attention/warpgroup_columns.hpp>

// The warpgroup that expands numbers of 8 bits, in attention of prompts with products of warpgroups. Empty for other
// compilers.

namespace pagedkv::kernels {

/// The numbers of weights and values in products. Values that become binary16, and have no scales of their own, stay
/// so: bfloat16 takes four times the instructions.
template <class Element, class Numbers>
using prefill_value_number = std::conditional_t<has_halves<Element> && !Element::scaled, typename Numbers::half,
                                                prefill_number<Element, Numbers>>;

/// Turns stored rows into rows of products: the keys of a stage, then its values, and so on. Values are multiplied by
/// their scales. Keys are not: large scores would magnify how they are rounded.
template <class Element, class Numbers, int KeyDim, int ValueDim>
class prefill_expander {
  using shape = warpgroup_prefill_shape<Element, KeyDim, ValueDim>;
  using rows = typename shape::rows;
  using Number = prefill_number<Element, Numbers>;
  using ValueNumber = prefill_value_number<Element, Numbers>;
  using two_chunks = registers<lane_word, 2, 4>;
  static constexpr unsigned parts = shape::stored_rows / 16;
  static_assert(KeyDim == 128 && ValueDim == 128, "a row's 16 numbers of 8 bits are eight lanes' chunks");
  static_assert(parts % 2 == 0);

 public:
  /// A lane has 16 numbers of a row in each 16. Eight neighbouring lanes have halves of two rows, which they read from
  /// different banks, and put to different banks.
  PAGEDKV_DEVICE explicit prefill_expander(int index) {
    const auto lane = index % 32;
    const auto row = index / 32 * 4 + lane / 4 % 2 + lane / 16 * 2;
    const auto chunk = lane % 4 + (lane / 8 + lane / 4) % 2 * 4;
    stored_ = static_cast<unsigned>(row * shape::stored_row_bytes + chunk * vector_bytes);
    expanded_[0] = rows::at(row, chunk * 2);
    expanded_[1] = rows::at(row, chunk * 2 + 1);
    scale_ = static_cast<unsigned>(row) * 4;
    // The compiler does not know these numbers. A constant it would move to a register again for each use.
    const auto nothing = workgroup_extent().x - static_cast<unsigned>(shape::lanes);
    factors_.factor ^= nothing;
    factors_.summand ^= nothing;
  }

  /// Until the warpgroup that copies says that no stage follows.
  PAGEDKV_DEVICE void expand() {
    for (;; ++used_stages_) {
      buffers_.stored.wait_until_full(used_stored_);
      if (buffers_.stored_ended()) {
        return;
      }
      two_chunks chunks;
      take(0, chunks[0]);
      buffers_.keys.wait_until_empty(used_stages_);
      expand_rows<false>(buffers_.keys_at(used_stages_), chunks);
      buffers_.keys.full(used_stages_).arrive();
      buffers_.values.wait_until_empty(used_stages_);
      expand_rows<true>(buffers_.values_at(used_stages_), chunks);
      buffers_.values.full(used_stages_).arrive();
    }
  }

 private:
  /// Takes the lane's chunk of some sixteen of the stored rows.
  PAGEDKV_DEVICE void take(unsigned part, lane_word (&chunk)[4]) const {
    take_chunk(buffers_.stored_at(used_stored_) + stored_ + part * 16 * shape::stored_row_bytes, chunk);
  }

  /// Expands the keys or the values of a stage. The first chunk has been taken; each next one is taken before one is
  /// expanded, also the first of the values.
  template <bool Values>
  PAGEDKV_DEVICE void expand_rows(unsigned to, two_chunks& chunks) {
    PAGEDKV_NO_UNROLL
    for (auto first = 0U; first < shape::tokens; first += shape::stored_rows) {
      PAGEDKV_UNROLL
      for (auto part = 0U; part < parts; ++part) {
        if (part + 1 < parts) {
          take(part + 1, chunks[(part + 1) % 2]);
        } else {
          ++used_stored_;
          if (!Values || first + shape::stored_rows < shape::tokens) {
            buffers_.stored.wait_until_full(used_stored_);
            take(0, chunks[0]);
          }
        }
        put_row<Values>(to, first + part * 16, chunks[part % 2]);
      }
      buffers_.stored.empty(used_stored_ - 1).arrive();
    }
  }

  /// `row`: the first of the sixteen.
  template <bool Values>
  PAGEDKV_DEVICE void put_row(unsigned to, unsigned row, const lane_word (&stored)[4]) const {
    constexpr auto scales = Values && Element::scaled;
    auto pair_of_scales = lane_word{0};
    if constexpr (scales) {
      const auto scale = take_float(buffers_.value_scales_at(used_stages_) + scale_ + row * 4);
      pair_of_scales = pack<Number>(scale * brain_divisor<Element>, scale * brain_divisor<Element>);
    }
    PAGEDKV_UNROLL
    for (auto chunk = 0U; chunk < 2; ++chunk) {
      registers<lane_word, 4> numbers;
      PAGEDKV_UNROLL
      for (auto word = 0U; word < 2; ++word) {
        registers<lane_word, 2> pairs;
        if constexpr (Values && !is_bfloat16<ValueNumber>) {
          pairs[0] = Element::template halves_of<0>(stored[chunk * 2 + word]);
          pairs[1] = Element::template halves_of<1>(stored[chunk * 2 + word]);
        } else {
          expand_to_brain<Element, Numbers>(stored[chunk * 2 + word], pairs, factors_);
        }
        numbers[word * 2] = scales ? multiply_brains(pairs[0], pair_of_scales) : pairs[0];
        numbers[word * 2 + 1] = scales ? multiply_brains(pairs[1], pair_of_scales) : pairs[1];
      }
      put_chunk(to + expanded_[chunk] + row / 16 * next_rows, numbers);
    }
  }

  prefill_buffers<shape> buffers_;
  unsigned stored_;                  // where the lane's first stored chunk is among the rows
  registers<unsigned, 2> expanded_;  // where its halves go among those of products
  unsigned scale_;
  brain_factors factors_;
  unsigned used_stored_ = 0;
  unsigned used_stages_ = 0;
};

}  // namespace pagedkv::kernels

// The warpgroups that compute, in attention of prompts with products of warpgroups. Empty for other compilers.

namespace pagedkv::kernels {

/// Computes 64 columns of one piece after the other. The products of keys of a stage and those of the values before it
/// run while the lanes turn scores into weights.
template <class Element, class Numbers, int KeyDim, int ValueDim>
class prefill_consumer {
  using shape = warpgroup_prefill_shape<Element, KeyDim, ValueDim>;
  using rows = typename shape::rows;
  using Number = prefill_number<Element, Numbers>;
  using ValueNumber = prefill_value_number<Element, Numbers>;
  /// Registers do not suffice for rules of columns beside scales of keys, nor beside results of 256 numbers.
  using column_state = warpgroup_columns<Numbers, shape::columns, Element::scaled || (ValueDim > 128)>;
  static constexpr int sums = shape::tokens / 2;  // scores of a lane
  using stages_of_piece = warpgroup_stages<shape::tokens>;
  using weight_words = registers<lane_word, shape::tokens / 16, 4>;
  /// Scales of a lane's tokens in so many sixteens, which are read ahead.
  static constexpr unsigned scales_ahead = 3;
  using key_scales = registers<lane_word, scales_ahead, 4>;
  /// Whether results pass through the queries' memory, which the next queries do not wait for.
  static constexpr bool keeps_queries = shape::query_buffers > 1;
  /// Whether a piece stays in shared memory until its end.
  static constexpr bool keeps_piece = shape::piece_buffers > 1;
  static constexpr bool keeps_row = shape::piece_buffers == shape::query_buffers;  // in registers
  using row_type = std::conditional_t<keeps_row, attention_row, row_of_piece>;

 public:
  PAGEDKV_DEVICE prefill_consumer(const attention_call& call, int index)
      : lane_(index % 32), group_(index / warpgroup_lanes), index_(index), columns_(call, first_row(index)) {}

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
      if constexpr (keeps_row) {
        add(piece.row, stages);
      } else {
        add({buffers_.piece_at(used_queries_)}, stages);
      }
    } else if (!keeps_queries) {
      buffers_.queries.empty(used_queries_).arrive();
    }
    used_stages_ += static_cast<unsigned>(stages.count);
    // Read again, which needs fewer registers than to keep it.
    finish(keeps_piece ? take_piece(buffers_.piece_at(used_queries_)) : piece);
    if (keeps_queries) {
      buffers_.queries.empty(used_queries_).arrive();
    }
    ++used_queries_;
    return true;
  }

 private:
  /// Where registers do not suffice, these are computed again from the index.
  [[nodiscard]] PAGEDKV_DEVICE int own_lane() const { return keeps_row ? lane_ : compute_again(index_) % 32; }
  [[nodiscard]] PAGEDKV_DEVICE int own_group() const {
    return keeps_row ? group_ : compute_again(index_) / warpgroup_lanes;
  }

  /// The first row of products of a lane.
  [[nodiscard]] static PAGEDKV_DEVICE int first_row(int index) { return index / 32 * 16 + index % 32 / 4; }
  PAGEDKV_DEVICE void find_rows_again() {
    if constexpr (!keeps_row) {
      columns_.set_row(first_row(compute_again(index_)));
    }
  }

  PAGEDKV_DEVICE void begin(const attention_piece& piece) {
    find_rows_again();
    columns_.begin(piece, buffers_.columns_at(used_queries_));
    PAGEDKV_UNROLL
    for (auto i = 0; i < ValueDim / 2; ++i) {
      output_[i] = 0.0F;
    }
  }

  PAGEDKV_DEVICE void add(const row_type& row, const stages_of_piece& stages) {
    registers<float, sums> scores = {};
    weight_words weights;
    registers<float, 2> rescale = {1.0F, 1.0F};
    key_scales scales;
    buffers_.keys.wait_until_full(used_stages_);
    publish_to_products();
    multiply_keys(used_stages_, scores);
    take_first_scales(used_stages_, scales);
    wait_for_products<0>();
    settle(scores);
    arrive_by_wave(buffers_.keys.empty(used_stages_), own_lane());
    scale_keys(used_stages_, scores, scales);
    auto rises = weigh(scores, row, stages, 0, rescale);
    // The loop begins with a wait: the compiler would move one in its middle before the arithmetic of `weigh`.
    for (auto stage = 1; stage < stages.count; ++stage) {
      const auto use = used_stages_ + static_cast<unsigned>(stage);
      end_values(use - 2, stage > 1);
      settle(scores);
      if (rises) {
        scale_rows(output_, rescale);
      }
      pack_weights<ValueNumber>(scores, weights);
      buffers_.keys.wait_until_full(use);
      buffers_.values.wait_until_full(use - 1);
      publish_to_products();
      multiply_keys(use, scores);
      multiply_values(use - 1, weights);
      take_first_scales(use, scales);
      wait_for_products<1>();
      settle(scores);
      arrive_by_wave(buffers_.keys.empty(use), own_lane());
      scale_keys(use, scores, scales);
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
    pack_weights<ValueNumber>(scores, weights);
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
      arrive_by_wave(buffers_.values.empty(use), own_lane());
    }
  }

  /// Starts the products of this warpgroup's queries and the keys of a stage.
  PAGEDKV_DEVICE void multiply_keys(unsigned use, registers<float, sums>& scores) const {
    const auto first = static_cast<unsigned>(own_group() * columns_of_warpgroup * 128);
    const auto queries = shape::query_rows::describe(of_wave(buffers_.queries_at(used_queries_) + first));
    const auto keys = rows::describe(of_wave(buffers_.keys_at(use)));
    settle(scores);
    begin_products();
    PAGEDKV_UNROLL
    for (auto block = 0U; block < shape::key_blocks; ++block) {
      PAGEDKV_UNROLL
      for (auto k = 0U; k < 4; ++k) {
        const auto of_queries = later(queries, block * shape::query_rows::block_bytes + k * next_numbers);
        const auto of_keys = later(keys, block * rows::block_bytes + k * next_numbers);
        if constexpr (shape::tokens == 64) {
          multiply_64x64<Number, false>(scores, of_queries, of_keys, block + k > 0 ? 1 : 0);
        } else {
          multiply_64x128<Number, false>(scores, of_queries, of_keys, block + k > 0 ? 1 : 0);
        }
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
        multiply_64x64<ValueNumber, true>(output_, weights[k], later(values, k * next_rows), 1);
      } else if constexpr (ValueDim == 128) {
        multiply_64x128<ValueNumber, true>(output_, weights[k], later(values, k * next_rows), 1);
      } else {
        multiply_64x256<ValueNumber, true>(output_, weights[k], later(values, k * next_rows), 1);
      }
    }
    end_products();
  }

  /// Takes the scales of a lane's tokens in some sixteen of a stage.
  PAGEDKV_DEVICE void take_scales(unsigned use, unsigned sixteen, key_scales& scales) const {
    take_chunk(buffers_.key_scales_at(use) + sixteen * 64 + static_cast<unsigned>(own_lane()) % 4 * 16,
               scales[sixteen % scales_ahead]);
  }

  /// Takes the first scales while keys are multiplied, because products delay a read of shared memory.
  PAGEDKV_DEVICE void take_first_scales([[maybe_unused]] unsigned use, [[maybe_unused]] key_scales& scales) const {
    if constexpr (Element::scaled) {
      PAGEDKV_UNROLL
      for (auto sixteen = 0U; sixteen < scales_ahead; ++sixteen) {
        take_scales(use, sixteen, scales);
      }
    }
  }

  /// Multiplies a stage's products by the scales of keys, the first of which have been taken.
  PAGEDKV_DEVICE void scale_keys([[maybe_unused]] unsigned use, [[maybe_unused]] registers<float, sums>& scores,
                                 [[maybe_unused]] key_scales& scales) const {
    if constexpr (Element::scaled) {
      constexpr auto sixteens = static_cast<unsigned>(shape::tokens) / 16;
      PAGEDKV_UNROLL
      for (auto sixteen = 0U; sixteen < sixteens; ++sixteen) {
        PAGEDKV_UNROLL
        for (auto i = 0U; i < 8; ++i) {
          const auto scale = scales[sixteen % scales_ahead][i / 4 * 2 + i % 2];
          scores[sixteen * 8 + i] *= __builtin_bit_cast(float, scale);
        }
        if (sixteen + scales_ahead < sixteens) {
          take_scales(use, sixteen + scales_ahead, scales);
        }
      }
    }
  }

  [[nodiscard]] PAGEDKV_DEVICE bool weigh(registers<float, sums>& scores, const row_type& row,
                                          const stages_of_piece& stages, std::int32_t stage,
                                          registers<float, 2>& rescale) {
    registers<float, 2> factors;
    find_rows_again();
    const auto rises = columns_.refer(scores, row, stages.first_token + stage * shape::tokens, stages.end_token,
                                      own_lane(), factors, rescale);
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
    const auto lane = compute_again(own_lane());
    find_rows_again();
    if (keeps_queries && columns_.has_short_rows(piece)) {
      wait_for_warpgroup(own_group());  // its products have read the queries
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
  int index_;  // of the lane among those that compute
  column_state columns_;
  prefill_buffers<shape> buffers_;
  unsigned used_queries_ = 0;
  unsigned used_stages_ = 0;
  registers<float, ValueDim / 2> output_;
};

}  // namespace pagedkv::kernels

#endif

#if defined(__CUDACC__) && !defined(__HIPCC__)

// Attention of tasks with many columns with Hopper's products of warpgroups. Other compilers see no such code.

namespace pagedkv::kernels {

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

/// Registers of a lane that copies, expands or multiplies. The warpgroups share what they are launched with; a lane
/// that asks for more waits without end.
template <class Shape>
struct prefill_registers {
  static constexpr int launched = Shape::expands ? 4 * 128 : 3 * 168;
  static constexpr int of_copies = Shape::expands ? 72 : 88;
  static constexpr int of_expansion = Shape::expands ? 40 : 0;
  static constexpr int of_products = (launched - of_copies - of_expansion) / 2;
  static_assert(of_products % 8 == 0);
};

/// The pieces of a share.
template <class Element, class Numbers, int KeyDim, int ValueDim>
PAGEDKV_DEVICE void attend_in_warpgroups(const attention_call& call, const divider<std::int32_t>& block_size) {
  using shape = warpgroup_prefill_shape<Element, KeyDim, ValueDim>;
  using lane_registers = prefill_registers<shape>;
  static_assert(shape::bytes <= 227 * 1024);
  const auto index = static_cast<int>(local_index().x);
  const auto share = static_cast<std::int32_t>(workgroup_index().x);
  // A captured graph has this kernel where no prefix is shared, too, and the merge begins after all its workgroups.
  if (call.plan.prefix_queries != nullptr &&
      is_empty(load_share(call.plan.shares + share), load_share(call.plan.shares + share + 1))) {
    return;
  }
  if (index == 0) {
    prefill_buffers<shape>().begin();
  }
  barrier();
  const auto of_products = index - shape::producers * warpgroup_lanes;
  if (index < warpgroup_lanes) {
    give_registers<lane_registers::of_copies>();
    auto producer = prefill_producer<Element, Numbers, KeyDim, ValueDim>(call, block_size, index);
    for (auto walk = attention_task_walk(call, share); !walk.done; walk.next_piece()) {
      producer.copy(walk);
    }
    producer.end();
  } else if (of_products >= 0) {
    take_registers<lane_registers::of_products>();
    auto consumer = prefill_consumer<Element, Numbers, KeyDim, ValueDim>(call, of_products);
    while (consumer.attend_next()) {
    }
  } else if constexpr (shape::expands) {
    give_registers<lane_registers::of_expansion>();
    prefill_expander<Element, Numbers, KeyDim, ValueDim>(index - warpgroup_lanes).expand();
  }
}

  #endif

template <auto Kernel, class Element, int KeyDim, int ValueDim>
[[nodiscard]] std::size_t prefill_shared_bytes() {
  return warpgroup_shared_bytes<Kernel>(warpgroup_prefill_shape<Element, KeyDim, ValueDim>::bytes);
}

/// Lanes of a workgroup of the kernel that needs this much dynamic shared memory.
template <class Element, int KeyDim, int ValueDim>
[[nodiscard]] int prefill_lanes(std::size_t shared_bytes) {
  return shared_bytes > 0 ? warpgroup_prefill_shape<Element, KeyDim, ValueDim>::lanes : group_lanes;
}

}  // namespace pagedkv::kernels

#else

namespace pagedkv::kernels {

template <auto Kernel, class Element, int KeyDim, int ValueDim>
[[nodiscard]] std::size_t prefill_shared_bytes() {
  return 0;
}

template <class Element, int KeyDim, int ValueDim>
[[nodiscard]] int prefill_lanes(std::size_t /*shared_bytes*/) {
  return group_lanes;
}

}  // namespace pagedkv::kernels

#endif
