#pragma once

// The warpgroup that copies, in attention over latent vectors with products of warpgroups. Empty for other compilers.

#include <pagedkv/kernels/attention/warpgroup_latent_buffers.hpp>

#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

  #include <pagedkv/kernels/attention/packed_chunk.hpp>
  #include <pagedkv/kernels/attention/warpgroup_queries.hpp>
  #include <pagedkv/kernels/attention/warpgroup_row.hpp>
  #include <pagedkv/kernels/divider.hpp>

namespace pagedkv::kernels {

/// Copies queries and stages into shared memory as buffers become empty. Packed values are copied as they are, to the
/// start of the memory where they are expanded, and the scales follow.
template <class Element, class Numbers>
class latent_producer {
  using shape = warpgroup_latent_shape<Element>;
  using rows = typename shape::rows;
  using Number = typename Numbers::template of_products<typename expanded<Element>::element>;
  using query_rows = warpgroup_queries<Numbers, Number, largest_plain_dim, shape::columns, warpgroup_lanes>;
  using stages_of_piece = warpgroup_stages<shape::tokens>;
  static constexpr int row_steps = shape::tokens / 16;  // rows of a stage that a lane copies chunks of
  static constexpr int rows_of_wave = 4 * row_steps;    // of a stage
  static constexpr int found_stages = 32 / rows_of_wave;

 public:
  PAGEDKV_DEVICE latent_producer(const attention_call& call, const divider<std::int32_t>& block_size, int index)
      : call_(call), block_size_(block_size), index_(index), of_lane_(compute_again(index % 8 * vector_bytes)) {}

  PAGEDKV_DEVICE void copy(const attention_walk& walk) {
    const auto stages = stages_of_piece(walk);
    find(walk, stages.first_token);
    buffers_.queries.wait_until_empty(used_queries_);
    // Addresses of queries are not kept for the next piece: stages need the registers.
    query_rows(call_, compute_again(index_))
        .put(walk, buffers_.base + shape::queries, buffers_.base + shape::of_columns, 1.0F);
    publish_to_products();
    buffers_.queries.full(used_queries_).arrive_after_copies();
    buffers_.queries.full(used_queries_).arrive();
    ++used_queries_;
    copy_stages(walk, stages);
  }

  /// After the last piece.
  PAGEDKV_DEVICE void end() const {
    if constexpr (packs_tokens<Element>) {
      buffers_.end_packed_values(used_stages_, index_ == 0);
    }
  }

 private:
  PAGEDKV_DEVICE void copy_stages(const attention_walk& walk, const stages_of_piece& stages) {
    const auto index = static_cast<unsigned>(index_);
    auto own_row = std::uint64_t{0};
    for (auto stage = 0; stage < stages.count; ++stage) {
      const auto found = stage % found_stages;
      if (found == 0) {
        own_row = address_of_row();
        find(walk, stages.first_token + (stage + found_stages) * shape::tokens);
      }
      registers<std::uint64_t, row_steps> starts;
      PAGEDKV_UNROLL
      for (auto step = 0; step < row_steps; ++step) {
        const auto row = shuffle(own_row, found * rows_of_wave + step * 4 + static_cast<int>(index % 32 / 8));
        starts[step] = row != 0 ? row + static_cast<unsigned>(of_lane_) : 0;
      }
      PAGEDKV_UNROLL
      for (auto part = 0; part < shape::parts; ++part) {
        buffers_.part(part).wait_until_empty(used_stages_);
        copy_part(part, starts);
        if (packs_tokens<Element> && part != shape::keys_only) {
          buffers_.packed_values(used_stages_, part).arrive_after_copies();
        } else {
          buffers_.part(part).full(used_stages_).arrive_after_copies();
        }
      }
      ++used_stages_;
    }
  }

  /// Finds the blocks of the rows that this wave copies in the next stages, one for each lane. Loads return in order, so
  /// these wait for all copies in flight: they are issued some stages ahead.
  PAGEDKV_DEVICE void find(const attention_walk& walk, std::int32_t first_token) {
    const auto index = static_cast<unsigned>(index_);
    const auto row = index % rows_of_wave;
    const auto place = index % 32 / rows_of_wave * shape::tokens + row / 4 * 16 + index / 32 * 4 + row % 4;
    row_.find(call_, walk.row, block_size_, first_token + static_cast<std::int32_t>(place));
  }

  /// The address of the row that this lane has found; 0 if there is none.
  [[nodiscard]] PAGEDKV_DEVICE std::uint64_t address_of_row() const {
    if (row_.block < 0) {
      return 0;
    }
    constexpr auto number_bytes = static_cast<std::int64_t>(sizeof(typename Element::storage));
    const auto number = static_cast<std::int64_t>(row_.offset * static_cast<std::int32_t>(call_.view.token_stride));
    return reinterpret_cast<std::uint64_t>(call_.view.block(call_.layer, row_.block) + number * number_bytes);
  }

  /// Eight neighbouring lanes copy 128 neighbouring bytes of a row.
  PAGEDKV_DEVICE void copy_part(int part, const registers<std::uint64_t, row_steps>& starts) const {
    const auto stored = stored_part<Element>::of(part);
    const auto index = static_cast<unsigned>(index_);
    const auto row = index / 32 * 4 + index % 32 / 8;
    const auto chunk = static_cast<unsigned>(of_lane_) ^ stored.swizzle(row) * vector_bytes;
    const auto to = buffers_.part_at(used_stages_, part) + row * 128 + chunk;
    PAGEDKV_UNROLL
    for (auto step = 0; step < row_steps; ++step) {
      const auto* const from = reinterpret_cast<const std::byte*>(starts[step]);
      PAGEDKV_UNROLL
      for (auto block = 0; block < stored.blocks; ++block) {
        const auto at = static_cast<unsigned>(step) * next_rows + static_cast<unsigned>(block) * rows::block_bytes;
        copy_chunk(to + at, from + stored.first + block * 128, from != nullptr);
      }
      if constexpr (packs_tokens<Element>) {
        if (part != shape::keys_only && of_lane_ == 0) {
          const auto at =
              static_cast<unsigned>(step) * next_rows + static_cast<unsigned>(stored.blocks) * rows::block_bytes;
          copy_chunk(to + at, from + Element::packed.scale_offset, from != nullptr);
        }
      }
    }
  }

  const attention_call& call_;
  const divider<std::int32_t>& block_size_;
  int index_;
  int of_lane_;  // bytes from the start of 128 that eight lanes copy; kept, as few registers remain to compute it with
  latent_buffers<Element> buffers_;
  unsigned used_queries_ = 0;
  unsigned used_stages_ = 0;
  warpgroup_row row_;
};

}  // namespace pagedkv::kernels

#endif
