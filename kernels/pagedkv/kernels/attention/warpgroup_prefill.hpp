#pragma once

// Attention of tasks with many columns with Hopper's products of warpgroups. Other compilers see no such code.

#include <pagedkv/kernels/attention/warpgroup_columns.hpp>

#include <cstddef>

#if defined(__CUDACC__) && !defined(__HIPCC__)

  #include <pagedkv/kernels/attention/launcher.hpp>

namespace pagedkv::kernels {

/// The division of a workgroup's work: two warpgroups with 64 columns each, stages of 64 tokens in two buffers.
template <int KeyDim, int ValueDim>
struct warpgroup_prefill_shape {
  static constexpr int tokens = 64;
  static constexpr int columns = 2 * columns_of_warpgroup;
  static constexpr int key_blocks = KeyDim / 64;
  static constexpr int value_blocks = ValueDim / 64;
  using rows = warpgroup_rows<tokens>;
  using query_rows = warpgroup_rows<columns>;
  static constexpr unsigned keys_bytes = key_blocks * rows::block_bytes;
  static constexpr unsigned values_bytes = value_blocks * rows::block_bytes;
  static constexpr unsigned queries = 0;
  static constexpr unsigned keys = key_blocks * query_rows::block_bytes;
  static constexpr unsigned values = keys + 2 * keys_bytes;
  static constexpr unsigned factors = values + 2 * values_bytes;
  static constexpr unsigned alignment = 1024;
  static constexpr std::size_t bytes = factors + columns * 4 + alignment;
};

/// Whether the kernel for these has a version with products of warpgroups.
template <class Element, int ValueDim>
inline constexpr bool has_warpgroup_prefill = sizeof(typename Element::storage) == 2 && ValueDim <= 128;

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

/// One piece after the other, by all lanes of a workgroup.
template <class Element, class Numbers, int KeyDim, int ValueDim>
class warpgroup_prefill {
  using shape = warpgroup_prefill_shape<KeyDim, ValueDim>;
  using rows = typename shape::rows;
  using Number = typename Numbers::template of_products<Element>;
  using column_state = warpgroup_columns<Numbers, Number, KeyDim, shape::columns>;
  static constexpr int sums = shape::tokens / 2;  // scores of a lane

 public:
  PAGEDKV_DEVICE warpgroup_prefill(const attention_call& call, const divider<std::int32_t>& block_size, int index)
      : call_(call),
        block_size_(block_size),
        index_(index),
        lane_(index % 32),
        group_(index / warpgroup_lanes),
        base_(aligned_shared(shape::alignment)),
        columns_(call, base_ + shape::queries, base_ + shape::factors, index / 32 * 16 + index % 32 / 4) {}

  PAGEDKV_DEVICE void attend(const attention_walk& walk) {
    constexpr auto step = shape::tokens / attention_tile;
    const auto num_stages = (walk.end - walk.tile + step - 1) / step;
    const auto first_token = (walk.row.first_tile + walk.tile) * attention_tile;
    const auto end_token = (walk.row.first_tile + walk.end) * attention_tile;
    const auto head = walk.task / walk.row.num_column_tiles;
    const auto find = [&](std::int32_t stage) {
      next_.find(call_, block_size_, walk, first_token + stage * shape::tokens, stage < num_stages, index_);
    };
    barrier();  // all lanes have used the previous piece's queries and stages
    find(0);
    columns_.put_queries(walk, index_);
    read_keys(0, head);
    end_copies();
    read_values(0, head);
    find(1);
    read_keys(1, head);
    end_copies();
    find(2);
    wait_for_copies<1>();
    publish_to_products();
    barrier();
    begin(walk);
    registers<float, sums> scores = {};
    registers<float, sums> following = {};
    if (num_stages > 0) {
      multiply_keys(0, scores);
      wait_for_products<0>();
    }
    barrier();  // both warpgroups have used the first keys
    read_values(1, head);
    read_keys(2, head);
    end_copies();
    for (auto stage = 0; stage < num_stages; ++stage) {
      wait_for_copies<1>();
      publish_to_products();
      barrier();
      if (stage + 1 < num_stages) {
        multiply_keys(stage + 1, following);
      }
      find(stage + 3);
      registers<lane_word, shape::tokens / 16, 4> weights;
      weigh(scores, first_token + stage * shape::tokens, end_token, weights);
      multiply_values(stage, weights);
      wait_for_products<0>();
      barrier();  // both warpgroups have used the values, and the following keys
      read_values(stage + 2, head);
      read_keys(stage + 3, head);
      end_copies();
      PAGEDKV_UNROLL
      for (auto i = 0; i < sums; ++i) {
        scores[i] = following[i];
      }
    }
    finish(walk);
  }

 private:
  PAGEDKV_DEVICE void begin(const attention_walk& walk) {
    columns_.begin(walk);
    PAGEDKV_UNROLL
    for (auto block = 0; block < shape::value_blocks; ++block) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < 32; ++i) {
        output_[block][i] = 0.0F;
      }
    }
  }

  /// Starts to copy the keys of the stage that was found, and makes it the stage whose values are copied next.
  PAGEDKV_DEVICE void read_keys(std::int32_t stage, std::int32_t head) {
    const auto& call = read_again(call_);
    const auto to = base_ + shape::keys + static_cast<unsigned>(stage % 2) * shape::keys_bytes;
    copy_rows<shape::key_blocks>(call, next_, to, 0, call.view.token_stride,
                                 head * static_cast<std::int32_t>(call.view.head_stride), call.view.head_dim);
    of_values_ = next_;
  }

  PAGEDKV_DEVICE void read_values(std::int32_t stage, std::int32_t head) {
    const auto& call = read_again(call_);
    const auto& view = call.view;
    const auto own = view.has_own_values();
    copy_rows<shape::value_blocks>(
        call, of_values_, base_ + shape::values + static_cast<unsigned>(stage % 2) * shape::values_bytes,
        view.value_offset, own ? view.value_token_stride : view.token_stride,
        head * static_cast<std::int32_t>(own ? view.value_head_stride : view.head_stride), call.output.dim);
  }

  /// Eight neighbouring lanes copy 128 neighbouring bytes of a row.
  template <int Blocks>
  PAGEDKV_DEVICE void copy_rows(const attention_call& call, const warpgroup_location& where, unsigned to,
                                std::int64_t start, std::int64_t token_stride, std::int32_t of_head,
                                std::int32_t dim) const {
    if (!where.in_piece()) {
      return;
    }
    PAGEDKV_UNROLL
    for (auto half = 0; half < 2; ++half) {
      const auto* const from = where.row(call, half, start, token_stride, of_head) +
                               static_cast<std::int64_t>(index_ % 8) * vector_bytes;
      const auto first = to + rows::at(index_ / 8 + half * (shape::tokens / 2), index_ % 8);
      PAGEDKV_UNROLL
      for (auto block = 0; block < Blocks; ++block) {
        copy_chunk(first + static_cast<unsigned>(block) * rows::block_bytes, from + block * 128,
                   where.exists() && block * 64 + index_ % 8 * 8 < dim);
      }
    }
  }

  /// Starts the products of this warpgroup's queries and the keys of a stage.
  PAGEDKV_DEVICE void multiply_keys(std::int32_t stage, registers<float, sums>& scores) {
    const auto first = static_cast<unsigned>(group_ * columns_of_warpgroup * 128);
    const auto queries = shape::query_rows::describe(base_ + shape::queries + first);
    const auto keys = rows::describe(base_ + shape::keys + static_cast<unsigned>(stage % 2) * shape::keys_bytes);
    begin_products();
    PAGEDKV_UNROLL
    for (auto block = 0U; block < shape::key_blocks; ++block) {
      PAGEDKV_UNROLL
      for (auto k = 0U; k < 4; ++k) {
        multiply_64x64<Number, false>(
            scores, queries + (block * shape::query_rows::block_bytes + k * next_numbers) / 16,
            keys + (block * rows::block_bytes + k * next_numbers) / 16, block + k > 0 ? 1 : 0);
      }
    }
    end_products();
  }

  /// Starts the products of weights and the values of a stage.
  PAGEDKV_DEVICE void multiply_values(std::int32_t stage, const registers<lane_word, shape::tokens / 16, 4>& weights) {
    const auto values = rows::describe(base_ + shape::values + static_cast<unsigned>(stage % 2) * shape::values_bytes);
    begin_products();
    PAGEDKV_UNROLL
    for (auto k = 0U; k < shape::tokens / 16; ++k) {
      PAGEDKV_UNROLL
      for (auto block = 0U; block < shape::value_blocks; ++block) {
        multiply_64x64<Number, true>(output_[block], weights[k],
                                     values + (block * rows::block_bytes + k * next_rows) / 16, 1);
      }
    }
    end_products();
  }

  /// Turns products into weights in the form of a product's first factor.
  PAGEDKV_DEVICE void weigh(registers<float, sums>& scores, std::int32_t first_token, std::int32_t end_token,
                            registers<lane_word, shape::tokens / 16, 4>& weights) {
    columns_.score(scores, first_token, end_token, lane_);
    registers<float, 2> largest;
    if (any(columns_.find_largest(scores, largest))) {
      raise_references(largest);
    }
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      const auto reference = columns_.reference[r] == -INFINITY ? 0.0F : columns_.reference[r];
      PAGEDKV_UNROLL
      for (auto i = 0; i < sums / 4; ++i) {
        const auto first = power_of_two(scores[i * 4 + r * 2] - reference);
        const auto second = power_of_two(scores[i * 4 + r * 2 + 1] - reference);
        columns_.sum[r] += first + second;
        weights[i / 2][i % 2 * 2 + r] = pack<Number>(first, second);
      }
    }
  }

  PAGEDKV_DEVICE void raise_references(const registers<float, 2>& largest) {
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      const auto factor =
          columns_.raise(r, column_state::of_row(largest[r], [](float a, float b) { return fmaxf(a, b); }));
      PAGEDKV_UNROLL
      for (auto block = 0; block < shape::value_blocks; ++block) {
        PAGEDKV_UNROLL
        for (auto i = 0; i < 16; ++i) {
          output_[block][i / 2 * 4 + r * 2 + i % 2] *= factor;
        }
      }
    }
  }

  PAGEDKV_DEVICE void finish(const attention_walk& walk) {
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      const auto total = column_state::of_row(columns_.sum[r], [](float a, float b) { return a + b; });
      PAGEDKV_UNROLL
      for (auto block = 0; block < shape::value_blocks; ++block) {
        columns_.write(walk, r, total, lane_ % 4 == 0 && block == 0, block * 64, output_[block], lane_);
      }
    }
  }

  const attention_call& call_;
  const divider<std::int32_t>& block_size_;
  int index_;
  int lane_;
  int group_;
  unsigned base_;
  column_state columns_;
  warpgroup_location next_;       // the stage whose keys are copied next
  warpgroup_location of_values_;  // the stage whose values are copied next
  registers<float, shape::value_blocks, 32> output_;
};

  #endif

template <auto Kernel, class Element, int KeyDim, int ValueDim>
[[nodiscard]] std::size_t prefill_shared_bytes() {
  return has_warpgroup_prefill<Element, ValueDim>
             ? warpgroup_shared_bytes<Kernel>(warpgroup_prefill_shape<KeyDim, ValueDim>::bytes)
             : 0;
}

}  // namespace pagedkv::kernels

#else

namespace pagedkv::kernels {

template <auto Kernel, class Element, int KeyDim, int ValueDim>
[[nodiscard]] std::size_t prefill_shared_bytes() {
  return 0;
}

}  // namespace pagedkv::kernels

#endif
