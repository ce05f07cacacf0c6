#pragma once

// The warpgroup that copies, in attention over latent vectors with products of warpgroups. Empty for other compilers.

#include <pagedkv/kernels/attention/warpgroup_latent_buffers.hpp>

#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

  #include <pagedkv/kernels/attention/warpgroup_queries.hpp>
  #include <pagedkv/kernels/divider.hpp>

namespace pagedkv::kernels {

/// Copies queries and stages into shared memory as buffers become empty. Each wave copies one part with values of all
/// tokens, and some tokens' numbers that are only keys. The rows of later stages are first read into the second-level
/// cache, each in one piece: parts of rows would be too short for the memory.
template <class Element, class Numbers>
class latent_producer {
  using shape = warpgroup_latent_shape;
  using rows = shape::rows;
  using Number = typename Numbers::template of_products<Element>;
  using query_rows = warpgroup_queries<Numbers, Number, largest_plain_dim, shape::columns, warpgroup_lanes>;
  static constexpr int stages_ahead = 2;  // that are read into the cache
  static constexpr int keys_only = shape::value_parts;

  /// Where a row is; the block is negative where a list skips it.
  struct row_place {
    std::int32_t block;
    std::int32_t offset;
  };

 public:
  PAGEDKV_DEVICE latent_producer(const attention_call& call, const divider<std::int32_t>& block_size, int index)
      : call_(call), block_size_(block_size), lane_(index % 32), wave_(index / 32), queries_(call, index) {}

  PAGEDKV_DEVICE void copy(const attention_walk& walk) {
    const auto stages = warpgroup_stages<shape::tokens>(walk);
    const auto find_stage = [&](std::int32_t stage) {
      const auto first = stages.first_token + stage * shape::tokens;
      next_[0] = find(walk, first + lane_);
      next_[1] = find(walk, first + 32 + lane_);
      later_ = find(walk, first + stages_ahead * shape::tokens + wave_ * 16 + lane_ % 16);
    };
    find_stage(0);
    buffers_.queries.wait_until_empty(used_queries_);
    queries_.put(walk, buffers_.base + shape::queries, buffers_.base + shape::factors);
    publish_to_products();
    buffers_.queries.full(used_queries_).arrive_after_copies();
    buffers_.queries.full(used_queries_).arrive();
    ++used_queries_;
    for (auto stage = 0; stage < stages.count; ++stage) {
      const registers<std::uint64_t, 2> starts = {start_of(next_[0]), start_of(next_[1])};
      const auto later = start_of(later_);
      if (stage + stages_ahead < stages.count && lane_ < 16 && later != 0) {
        read_into_cache(reinterpret_cast<const std::byte*>(later), largest_plain_dim * 2);
      }
      find_stage(stage + 1);
      buffers_.part(wave_).wait_until_empty(used_stages_);
      copy_values(starts);
      buffers_.part(wave_).full(used_stages_).arrive_after_copies();
      buffers_.part(keys_only).wait_until_empty(used_stages_);
      copy_keys(starts[wave_ / 2]);
      buffers_.part(keys_only).full(used_stages_).arrive_after_copies();
      ++used_stages_;
    }
  }

 private:
  /// Reads a row's block well before it is used.
  [[nodiscard]] PAGEDKV_DEVICE row_place find(const attention_walk& walk, std::int32_t place) const {
    const auto last = walk.row.num_tokens - 1;
    const auto unseen = walk.row.num_tokens - walk.row.num_queries - call_.window + 1;
    const auto first = call_.window > 0 && unseen > 0 ? unseen : 0;
    const auto nearest = token_to_read(call_, walk.row, place, first, last);
    if (nearest < 0) {
      return {-1, 0};
    }
    const auto [block, offset] = block_size_.split(nearest);
    return {static_cast<std::int32_t>(load(call_.indices + walk.row.first_index + block)), offset};
  }

  /// A row's address, or 0.
  [[nodiscard]] PAGEDKV_DEVICE std::uint64_t start_of(const row_place& place) const {
    if (place.block < 0) {
      return 0;
    }
    const auto number = static_cast<std::int64_t>(place.offset * static_cast<std::int32_t>(call_.view.token_stride));
    return reinterpret_cast<std::uint64_t>(call_.view.block(call_.layer, place.block) + number * 2);
  }

  /// Copies this wave's part of all rows. A lane has the addresses of two rows, 32 apart; eight neighbouring lanes copy
  /// 128 neighbouring bytes of a row.
  PAGEDKV_DEVICE void copy_values(const registers<std::uint64_t, 2>& starts) const {
    const auto part = buffers_.part_at(used_stages_, wave_);
    const unsigned to[2] = {part + rows::at(lane_ / 8, lane_ % 8), part + rows::at(4 + lane_ / 8, lane_ % 8)};
    PAGEDKV_UNROLL
    for (auto step = 0; step < shape::tokens / 4; ++step) {
      const auto start = shuffle(starts[step / 8], step % 8 * 4 + lane_ / 8);
      const auto* const from = reinterpret_cast<const std::byte*>(start) + wave_ * 256 + lane_ % 8 * vector_bytes;
      PAGEDKV_UNROLL
      for (auto block = 0; block < 2; ++block) {
        copy_chunk(to[step % 2] + static_cast<unsigned>(step / 2 * 1024) +
                       static_cast<unsigned>(block) * rows::block_bytes,
                   from + block * 128, start != 0);
      }
    }
  }

  /// Copies the rest of 16 rows. `start`: of row `lane % 32` of the half that they are in.
  PAGEDKV_DEVICE void copy_keys(std::uint64_t start) const {
    const auto part = buffers_.part_at(used_stages_, keys_only);
    PAGEDKV_UNROLL
    for (auto step = 0; step < 4; ++step) {
      const auto row = wave_ * 16 + step * 4 + lane_ / 8;
      const auto own = shuffle(start, row % 32);
      const auto* const from = reinterpret_cast<const std::byte*>(own) + keys_only * 256 + lane_ % 8 * vector_bytes;
      copy_chunk(part + rows::at(row, lane_ % 8), from, own != 0);
    }
  }

  const attention_call& call_;
  const divider<std::int32_t>& block_size_;
  int lane_;
  int wave_;
  query_rows queries_;
  latent_buffers buffers_;
  unsigned used_queries_ = 0;
  unsigned used_stages_ = 0;
  row_place next_[2];  // of the stage that is copied next
  row_place later_;
};

}  // namespace pagedkv::kernels

#endif
