#pragma once

// Attention over latent vectors with Hopper's products of warpgroups. Other compilers see no such kernel.

#include <pagedkv/kernels/attention/warpgroup_columns.hpp>
#include <pagedkv/kernels/attention/warpgroup_queries.hpp>

#include <cstddef>

#if defined(__CUDACC__) && !defined(__HIPCC__)

  #include <pagedkv/kernels/attention/launcher.hpp>
  #include <pagedkv/kernels/divider.hpp>

namespace pagedkv::kernels {

/// The division of a workgroup's work: two warpgroups, 64 columns, stages of 64 tokens. Scores: each warpgroup has half
/// of the tokens. Outputs: each has half of the values.
struct warpgroup_latent_shape {
  static constexpr int tokens = 64;
  static constexpr int columns = columns_of_warpgroup;
  static constexpr int key_chunks = largest_plain_dim / 8;
  static constexpr int value_half = largest_value_dim / 2;
  using rows = warpgroup_rows<tokens>;
  static constexpr unsigned stage_bytes = largest_plain_dim / 64 * rows::block_bytes;
  static constexpr unsigned queries = 0;
  static constexpr unsigned stages = queries + stage_bytes;
  static constexpr unsigned weights = stages + 2 * stage_bytes;
  static constexpr unsigned largest = weights + rows::block_bytes;  // [2][columns]
  static constexpr unsigned factors = largest + 2 * columns * 4;
  static constexpr unsigned alignment = 1024;
  static constexpr std::size_t bytes = factors + columns * 4 + alignment;
};

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

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
    PAGEDKV_UNROLL
    for (auto half = 0; half < 2; ++half) {
      block_[half] = 0;
      offset_[half] = 0;
      const auto place = first_token + index / 8 + half * (tokens / 2);
      const auto nearest = in_piece ? token_to_read(call, walk.row, place, first, last) : -1;
      exists_[half] = nearest >= 0;
      if (exists_[half]) {
        const auto [block, offset] = block_size.split(nearest);
        offset_[half] = offset;
        block_[half] = static_cast<std::int32_t>(load(call.indices + walk.row.first_index + block));
      }
    }
  }

  [[nodiscard]] PAGEDKV_DEVICE bool in_piece() const { return in_piece_; }
  [[nodiscard]] PAGEDKV_DEVICE bool exists(int half) const { return exists_[half]; }

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
  registers<bool, 2> exists_;
};

/// One piece after the other, by all lanes of a workgroup.
template <class Element, class Numbers>
class warpgroup_latent {
  using shape = warpgroup_latent_shape;
  using rows = shape::rows;
  using Number = typename Numbers::template of_products<Element>;
  using column_state = warpgroup_columns<Numbers, shape::columns>;
  using query_rows = warpgroup_queries<Numbers, Number, largest_plain_dim, shape::columns, group_lanes>;

 public:
  PAGEDKV_DEVICE warpgroup_latent(const attention_call& call, const divider<std::int32_t>& block_size, int index)
      : call_(call),
        block_size_(block_size),
        index_(index),
        lane_(index % 32),
        group_(index / warpgroup_lanes),
        row_(index / 32 % 4 * 16 + index % 32 / 4),
        base_(aligned_shared(shape::alignment)),
        queries_(call, index),
        columns_(call, row_) {}

  PAGEDKV_DEVICE void attend(const attention_walk& walk) {
    constexpr auto step = shape::tokens / attention_tile;
    const auto num_stages = (walk.end - walk.tile + step - 1) / step;
    const auto first_token = (walk.row.first_tile + walk.tile) * attention_tile;
    const auto end_token = (walk.row.first_tile + walk.end) * attention_tile;
    const auto find = [&](std::int32_t stage) {
      next_.find(call_, block_size_, walk, first_token + stage * shape::tokens, stage < num_stages, index_);
    };
    barrier();  // all lanes have used the previous piece's queries
    find(0);
    queries_.put(walk, base_ + shape::queries, base_ + shape::factors);
    read(0);
    find(1);
    read(1);
    find(2);
    wait_for_copies<1>();
    publish_to_products();
    barrier();
    begin(walk);
    registers<float, 16> following = {};
    if (num_stages > 0) {
      multiply_keys(0, following);
      wait_for_products<0>();
    }
    for (auto stage = 0; stage < num_stages; ++stage) {
      registers<float, 16> scores;
      PAGEDKV_UNROLL
      for (auto i = 0; i < 16; ++i) {
        scores[i] = following[i];
      }
      registers<float, 2> factors;
      columns_.score(scores, walk.row, first_token + stage * shape::tokens + group_ * 32, end_token, lane_, factors);
      share_weights(scores, factors);
      multiply_values(stage);
      if (stage + 1 < num_stages) {
        wait_for_copies<0>();
        publish_to_products();
        barrier();
        multiply_keys(stage + 1, following);
        wait_for_products<1>();
      } else {
        wait_for_products<0>();
      }
      barrier();  // both warpgroups have used the stage
      read(stage + 2);
      find(stage + 3);
      wait_for_products<0>();
    }
    finish(walk);
  }

 private:
  PAGEDKV_DEVICE void begin(const attention_walk& walk) {
    columns_.begin(walk, base_ + shape::factors);
    PAGEDKV_UNROLL
    for (auto half = 0; half < 2; ++half) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < 64; ++i) {
        output_[half][i] = 0.0F;
      }
    }
  }

  /// Starts to copy the stage that was found, if it exists. Eight neighbouring lanes copy 128 neighbouring bytes of a
  /// row.
  PAGEDKV_DEVICE void read(std::int32_t stage) {
    if (next_.in_piece()) {
      const auto& call = read_again(call_);
      PAGEDKV_UNROLL
      for (auto half = 0; half < 2; ++half) {
        const auto* const from =
            next_.row(call, half, 0, call.view.token_stride, 0) + static_cast<std::int64_t>(index_ % 8) * vector_bytes;
        const auto to = stage_at(stage) + rows::at(index_ / 8 + half * (shape::tokens / 2), index_ % 8);
        PAGEDKV_UNROLL
        for (auto block = 0; block < largest_plain_dim / 64; ++block) {
          copy_chunk(to + static_cast<unsigned>(block) * rows::block_bytes, from + block * 128, next_.exists(half));
        }
      }
    }
    end_copies();
  }

  [[nodiscard]] PAGEDKV_DEVICE unsigned stage_at(std::int32_t stage) const {
    return base_ + shape::stages + static_cast<unsigned>(stage % 2) * shape::stage_bytes;
  }

  /// Starts the products of queries and this warpgroup's half of a stage.
  PAGEDKV_DEVICE void multiply_keys(std::int32_t stage, registers<float, 16>& scores) {
    const auto queries = rows::describe(base_ + shape::queries);
    const auto keys = rows::describe(stage_at(stage) + static_cast<unsigned>(group_) * 32 * 128);
    begin_products();
    PAGEDKV_UNROLL
    for (auto block = 0; block < largest_plain_dim / 64; ++block) {
      PAGEDKV_UNROLL
      for (auto k = 0; k < 4; ++k) {
        const auto at = static_cast<unsigned>(block) * rows::block_bytes + static_cast<unsigned>(k) * next_numbers;
        multiply_64x32<Number, false>(scores, queries + at / 16, keys + at / 16, block + k > 0 ? 1 : 0);
      }
    }
    end_products();
  }

  /// Starts the products of the shared weights and this warpgroup's half of a stage's values.
  PAGEDKV_DEVICE void multiply_values(std::int32_t stage) {
    const auto weights = rows::describe(base_ + shape::weights);
    const auto values = rows::describe(stage_at(stage) + static_cast<unsigned>(group_) * 4 * rows::block_bytes);
    begin_products();
    PAGEDKV_UNROLL
    for (auto k = 0U; k < shape::tokens / 16; ++k) {
      PAGEDKV_UNROLL
      for (auto half = 0U; half < 2; ++half) {
        multiply_64x128<Number, true>(output_[half], weights + k * next_numbers / 16,
                                      values + (half * 2 * rows::block_bytes + k * next_rows) / 16, 1);
      }
    }
    end_products();
  }

  /// Puts the weights of both halves of the stage into shared memory. References seldom grow: then weights are made
  /// again.
  PAGEDKV_DEVICE void share_weights(const registers<float, 16>& scores, const registers<float, 2>& factors) {
    registers<float, 2> largest;
    const auto grows = columns_.find_largest(scores, factors, largest);
    registers<float, 2> added;
    put_weights(scores, factors, added);
    publish_to_products();
    if (any_of_workgroup(grows)) {
      raise_references(largest);
      put_weights(scores, factors, added);
      publish_to_products();
      barrier();
    }
    columns_.sum[0] += added[0];
    columns_.sum[1] += added[1];
  }

  PAGEDKV_DEVICE void raise_references(registers<float, 2>& largest) {
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      largest[r] = column_state::of_row(largest[r], [](float a, float b) { return fmaxf(a, b); });
      if (lane_ % 4 == 0) {
        put_float(shared_largest(group_, r), largest[r]);
      }
    }
    barrier();
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      const auto factor = columns_.raise(r, fmaxf(largest[r], take_float(shared_largest(1 - group_, r))));
      PAGEDKV_UNROLL
      for (auto half = 0; half < 2; ++half) {
        PAGEDKV_UNROLL
        for (auto i = 0; i < 32; ++i) {
          output_[half][i / 2 * 4 + r * 2 + i % 2] *= factor;
        }
      }
    }
  }

  PAGEDKV_DEVICE void put_weights(const registers<float, 16>& scores, const registers<float, 2>& factors,
                                  registers<float, 2>& added) {
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      const auto reference = columns_.reference[r] == -INFINITY ? 0.0F : columns_.reference[r];
      added[r] = 0.0F;
      PAGEDKV_UNROLL
      for (auto i = 0; i < 4; ++i) {
        const auto first = power_of_two(scores[i * 4 + r * 2] * factors[r] - reference);
        const auto second = power_of_two(scores[i * 4 + r * 2 + 1] * factors[r] - reference);
        added[r] += first + second;
        put_word(base_ + shape::weights + rows::at(row_ + 8 * r, group_ * 4 + i) + static_cast<unsigned>(lane_ % 4) * 4,
                 pack<Number>(first, second));
      }
    }
  }

  PAGEDKV_DEVICE void finish(const attention_walk& walk) {
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      columns_.sum[r] = column_state::of_row(columns_.sum[r], [](float a, float b) { return a + b; });
      if (lane_ % 4 == 0) {
        put_float(shared_largest(group_, r), columns_.sum[r]);
      }
    }
    barrier();
    PAGEDKV_UNROLL
    for (auto r = 0; r < 2; ++r) {
      const auto total = columns_.sum[r] + take_float(shared_largest(1 - group_, r));
      PAGEDKV_UNROLL
      for (auto half = 0; half < 2; ++half) {
        columns_.write(walk, r, total, lane_ % 4 == 0 && group_ == 0 && half == 0,
                       group_ * shape::value_half + half * 128, output_[half], lane_);
      }
    }
  }

  [[nodiscard]] PAGEDKV_DEVICE unsigned shared_largest(int group, int r) const {
    return base_ + shape::largest + static_cast<unsigned>(group * shape::columns + row_ + 8 * r) * 4;
  }

  const attention_call& call_;
  const divider<std::int32_t>& block_size_;
  int index_;
  int lane_;
  int group_;
  int row_;  // of products: the lane's first column; the second is 8 later
  unsigned base_;
  query_rows queries_;
  column_state columns_;
  warpgroup_location next_;  // the stage that is copied next
  registers<float, 2, 64> output_;
};

  #endif

template <auto Kernel>
[[nodiscard]] std::size_t latent_shared_bytes() {
  return warpgroup_shared_bytes<Kernel>(warpgroup_latent_shape::bytes);
}

}  // namespace pagedkv::kernels

#else

namespace pagedkv::kernels {

template <auto Kernel>
[[nodiscard]] std::size_t latent_shared_bytes() {
  return 0;
}

}  // namespace pagedkv::kernels

#endif
