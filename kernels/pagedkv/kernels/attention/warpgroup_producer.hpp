#pragma once

// The warpgroup that copies, in attention of prompts with products of warpgroups. Empty for other compilers.

#include <pagedkv/kernels/attention/warpgroup_buffers.hpp>

#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

  #include <pagedkv/kernels/attention/warpgroup_queries.hpp>
  #include <pagedkv/kernels/attention/warpgroup_row.hpp>
  #include <pagedkv/kernels/divider.hpp>

namespace pagedkv::kernels {

/// Copies queries, keys and values into shared memory as buffers become empty.
template <class Element, class Numbers, int KeyDim, int ValueDim>
class prefill_producer {
  using shape = warpgroup_prefill_shape<KeyDim, ValueDim>;
  using Number = typename Numbers::template of_products<Element>;
  using query_rows = warpgroup_queries<Numbers, Number, KeyDim, shape::columns, warpgroup_lanes>;

 public:
  PAGEDKV_DEVICE prefill_producer(const attention_call& call, const divider<std::int32_t>& block_size, int index)
      : call_(call), block_size_(block_size), index_(index), queries_(call, index) {}

  PAGEDKV_DEVICE void copy(const attention_walk& walk) {
    const auto stages = warpgroup_stages<shape::tokens>(walk);
    const auto head = walk.task / walk.row.num_column_tiles;
    find(walk, stages.first_token);
    copy_queries(walk);
    auto values = static_cast<const std::byte*>(nullptr);
    for (auto stage = 0; stage <= stages.count; ++stage) {
      const auto values_before = values;
      if (stage < stages.count) {
        const auto keys = key_row(head);
        values = value_row(head);
        find(walk, stages.first_token + (stage + 1) * shape::tokens);
        buffers_.keys.wait_until_empty(used_keys_);
        copy_rows<shape::key_blocks>(buffers_.keys_at(used_keys_), keys, call_.view.head_dim);
        buffers_.keys.full(used_keys_).arrive_after_copies();
        ++used_keys_;
      }
      if (stage > 0) {
        buffers_.values.wait_until_empty(used_values_);
        copy_rows<shape::value_blocks>(buffers_.values_at(used_values_), values_before, call_.output.dim);
        buffers_.values.full(used_values_).arrive_after_copies();
        ++used_values_;
      }
    }
  }

  /// After the last piece.
  PAGEDKV_DEVICE void end() {
    buffers_.queries.wait_until_empty(used_queries_);
    if (index_ == 0) {
      end_pieces(buffers_.piece_at(used_queries_));
    }
    buffers_.queries.full(used_queries_).arrive();
    buffers_.queries.full(used_queries_).arrive();
  }

 private:
  PAGEDKV_DEVICE void copy_queries(const attention_walk& walk) {
    buffers_.queries.wait_until_empty(used_queries_);
    if (index_ == 0) {
      put_piece(buffers_.piece_at(used_queries_), walk);
    }
    queries_.put(walk, buffers_.queries_at(used_queries_), buffers_.columns_at(used_queries_));
    publish_to_products();
    buffers_.queries.full(used_queries_).arrive_after_copies();
    buffers_.queries.full(used_queries_).arrive();
    ++used_queries_;
  }

  /// Finds the block of one of the 32 rows that this wave copies, well before it is used.
  PAGEDKV_DEVICE void find(const attention_walk& walk, std::int32_t first_token) {
    const auto place = first_token + index_ % 32 / 4 * 16 + index_ / 32 * 4 + index_ % 4;
    row_.find(call_, walk.row, block_size_, place);
  }

  [[nodiscard]] PAGEDKV_DEVICE const std::byte* key_row(std::int32_t head) const {
    const auto& view = call_.view;
    return row_at(0, view.token_stride, view.head_stride * head);
  }
  [[nodiscard]] PAGEDKV_DEVICE const std::byte* value_row(std::int32_t head) const {
    const auto& view = call_.view;
    const auto own = view.has_own_values();
    return row_at(view.value_offset, own ? view.value_token_stride : view.token_stride,
                  (own ? view.value_head_stride : view.head_stride) * head);
  }
  [[nodiscard]] PAGEDKV_DEVICE const std::byte* row_at(std::int64_t start, std::int64_t token_stride,
                                                       std::int64_t of_head) const {
    const auto number = row_.offset * static_cast<std::int32_t>(token_stride) + static_cast<std::int32_t>(of_head);
    if (row_.block < 0) {
      return nullptr;
    }
    return call_.view.block(call_.layer, row_.block) + start + static_cast<std::int64_t>(number) * 2;
  }

  /// Eight neighbouring lanes copy 128 neighbouring bytes of a row, whose address another lane of the wave has; zeros
  /// where it is null.
  template <int Blocks>
  PAGEDKV_DEVICE void copy_rows(unsigned to, const std::byte* row, std::int32_t dim) const {
    const auto own = index_ % 32;
    const auto first = to + shape::rows::at(index_ / 32 * 4 + own / 8, index_ % 8);
    const auto address = reinterpret_cast<std::uint64_t>(row);
    PAGEDKV_UNROLL
    for (auto part = 0; part < shape::tokens / 16; ++part) {
      const auto start = shuffle(address, part * 4 + own / 8);
      const auto from = start + static_cast<unsigned>(index_ % 8) * vector_bytes;
      PAGEDKV_UNROLL
      for (auto block = 0; block < Blocks; ++block) {
        const auto at =
            static_cast<unsigned>(part) * next_rows + static_cast<unsigned>(block) * shape::rows::block_bytes;
        copy_chunk(first + at, reinterpret_cast<const std::byte*>(from) + block * 128,
                   start != 0 && block * 64 + index_ % 8 * 8 < dim);
      }
    }
  }

  const attention_call& call_;
  const divider<std::int32_t>& block_size_;
  int index_;
  query_rows queries_;
  prefill_buffers<shape> buffers_;
  unsigned used_queries_ = 0;
  unsigned used_keys_ = 0;
  unsigned used_values_ = 0;
  warpgroup_row row_;
};

}  // namespace pagedkv::kernels

#endif
