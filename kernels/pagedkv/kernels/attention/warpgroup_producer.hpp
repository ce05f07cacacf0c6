#pragma once

#include <pagedkv/kernels/attention/warpgroup_buffers.hpp>
#include <pagedkv/kernels/attention/warpgroup_nvidia.hpp>

#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

  #include <pagedkv/kernels/attention/tile_reader.hpp>
  #include <pagedkv/kernels/attention/walk.hpp>
  #include <pagedkv/kernels/attention/warpgroup_queries.hpp>
  #include <pagedkv/kernels/divider.hpp>

// Rows of tokens that a warpgroup copies for products. Empty for other compilers.

namespace pagedkv::kernels {

/// The place of a token's row in the cache.
struct warpgroup_row {
  std::int32_t block = -1;  // negative: a list skips it
  std::int32_t offset = 0;  // tokens from the block's start

  /// Finds the row to read at a place among the tiles of a row of the batch.
  PAGEDKV_DEVICE void find(const attention_call& call, const attention_row& row,
                           const divider<std::int32_t>& block_size, std::int32_t place) {
    const auto last = row.num_tokens - 1;
    const auto first = first_seen_token(row.num_tokens - row.num_queries, call.window);
    block = -1;
    offset = 0;
    const auto nearest = token_to_read(call, row, place, first, last);
    if (nearest >= 0) {
      const auto [index, of_token] = block_size.split(nearest);
      offset = of_token;
      block = static_cast<std::int32_t>(load(call.indices + row.first_index + index));
    }
  }
};

}  // namespace pagedkv::kernels

// The warpgroup that copies, in attention of prompts with products of warpgroups. Empty for other compilers.

namespace pagedkv::kernels {

/// Copies queries, keys and values into shared memory as buffers become empty; keys and values of 8 bits as they are
/// stored.
template <class Element, class Numbers, int KeyDim, int ValueDim>
class prefill_producer {
  using shape = warpgroup_prefill_shape<Element, KeyDim, ValueDim>;
  using Number = prefill_number<Element, Numbers>;
  using query_rows = warpgroup_queries<Numbers, Number, KeyDim, shape::columns, warpgroup_lanes>;
  using stages_of_piece = warpgroup_stages<shape::tokens>;

 public:
  PAGEDKV_DEVICE prefill_producer(const attention_call& call, const divider<std::int32_t>& block_size, int index)
      : call_(call), block_size_(block_size), index_(index) {}

  PAGEDKV_DEVICE void copy(const attention_walk& walk) {
    const auto stages = stages_of_piece(walk);
    find(walk, stages.first_token);
    copy_queries(walk);
    if constexpr (shape::expands) {
      copy_stored_stages(walk, stages);
    } else {
      copy_stages(walk, stages);
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
    if constexpr (shape::expands) {
      buffers_.end_stored(used_stored_, index_ == 0);
    }
  }

 private:
  PAGEDKV_DEVICE void copy_stages(const attention_walk& walk, const stages_of_piece& stages) {
    const auto head = walk.task / walk.row.num_column_tiles;
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

  /// Copies rows as they are stored, for the warpgroup that expands them.
  PAGEDKV_DEVICE void copy_stored_stages(const attention_walk& walk, const stages_of_piece& stages) {
    const auto head = walk.task / walk.row.num_column_tiles;
    for (auto stage = 0; stage < stages.count; ++stage) {
      const auto keys = key_row(head);
      const auto values = value_row(head);
      if constexpr (Element::scaled) {
        // Those of four stages before are not used any more when the first rows of this one may be copied.
        buffers_.stored.wait_until_empty(used_stored_);
        copy_scales(head);
      }
      find(walk, stages.first_token + (stage + 1) * shape::tokens);
      copy_stored_rows(keys, call_.view.head_dim);
      copy_stored_rows(values, call_.output.dim);
    }
  }

  PAGEDKV_DEVICE void copy_queries(const attention_walk& walk) {
    buffers_.queries.wait_until_empty(used_queries_);
    if (index_ == 0) {
      put_piece(buffers_.piece_at(used_queries_), walk);
    }
    // Addresses of queries are not kept for the next piece: stages need the registers.
    query_rows(call_, compute_again(index_))
        .put(walk, buffers_.queries_at(used_queries_), buffers_.columns_at(used_queries_),
             shape::expands ? static_key_scale<Element>(call_, walk) * brain_divisor<Element>
                            : static_key_scale<Element>(call_, walk));
    publish_to_products();
    buffers_.queries.full(used_queries_).arrive_after_copies();
    buffers_.queries.full(used_queries_).arrive();
    ++used_queries_;
  }

  /// Finds the block of one of the 32 rows that this wave copies, well before it is used.
  PAGEDKV_DEVICE void find(const attention_walk& walk, std::int32_t first_token) {
    row_.find(call_, walk.row, block_size_, first_token + static_cast<std::int32_t>(place_of_row()));
  }

  /// That row's place in its stage. In stages of fewer than 128 tokens, several lanes have the same.
  [[nodiscard]] PAGEDKV_DEVICE unsigned place_of_row() const {
    constexpr auto sixteens = shape::tokens / 16;
    const auto sixteen = index_ % 32 / 4;
    return static_cast<unsigned>((sixteens < 8 ? sixteen % sixteens : sixteen) * 16 + index_ / 32 * 4 + index_ % 4);
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
    return call_.view.block(call_.layer, row_.block) + start + static_cast<std::int64_t>(number) * number_bytes;
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

  /// Copies the rows of a stage as they are stored, so many at a time, and zeros past their end. Eight neighbouring
  /// lanes copy a row, whose address another lane of the wave has.
  PAGEDKV_DEVICE void copy_stored_rows(const std::byte* row, std::int32_t dim) {
    const auto own = index_ % 32;
    const auto of_lane = static_cast<unsigned>(index_ % 8 * vector_bytes);
    const auto first = static_cast<unsigned>(index_ / 32 * 4 + own / 8) * shape::stored_row_bytes + of_lane;
    const auto address = reinterpret_cast<std::uint64_t>(row);
    PAGEDKV_NO_UNROLL
    for (auto part = 0; part < shape::tokens / 16; part += shape::stored_rows / 16) {
      buffers_.stored.wait_until_empty(used_stored_);
      const auto to = buffers_.stored_at(used_stored_) + first;
      PAGEDKV_UNROLL
      for (auto i = 0; i < shape::stored_rows / 16; ++i) {
        const auto start = shuffle(address, (part + i) * 4 + own / 8);
        copy_chunk(to + static_cast<unsigned>(i) * 16 * shape::stored_row_bytes,
                   reinterpret_cast<const std::byte*>(start + of_lane),
                   start != 0 && of_lane < static_cast<unsigned>(dim));
      }
      buffers_.stored.full(used_stored_).arrive_after_copies();
      ++used_stored_;
    }
  }

  /// Copies the scales of the row that this lane has found.
  PAGEDKV_DEVICE void copy_scales(std::int32_t head) {
    const auto& view = call_.view;
    const auto exists = row_.block >= 0;
    const auto* const block = view.block(call_.layer, row_.block);
    const auto at = row_.offset * static_cast<std::int32_t>(view.scale_token_stride) +
                    head * static_cast<std::int32_t>(view.scale_head_stride);
    copy_word(buffers_.key_scales_at(used_keys_) + place_of_scale(place_of_row()) * 4,
              reinterpret_cast<const float*>(block + view.key_scale_offset) + at, exists);
    copy_word(buffers_.value_scales_at(used_keys_) + place_of_row() * 4,
              reinterpret_cast<const float*>(block + view.value_scale_offset) + at, exists);
    buffers_.keys.full(used_keys_).arrive_after_copies();
    ++used_keys_;
  }

  static constexpr auto number_bytes = static_cast<std::int64_t>(sizeof(typename Element::storage));

  const attention_call& call_;
  const divider<std::int32_t>& block_size_;
  int index_;
  prefill_buffers<shape> buffers_;
  unsigned used_queries_ = 0;
  unsigned used_stored_ = 0;
  unsigned used_keys_ = 0;
  unsigned used_values_ = 0;
  warpgroup_row row_;
};

}  // namespace pagedkv::kernels

#endif
