#pragma once

// The warpgroup that copies, in attention over latent vectors with products of warpgroups. Empty for other compilers.

#include <pagedkv/kernels/attention/warpgroup_latent_buffers.hpp>

#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

  #include <pagedkv/kernels/attention/packed_chunk.hpp>
  #include <pagedkv/kernels/attention/warpgroup_queries.hpp>
  #include <pagedkv/kernels/attention/warpgroup_row.hpp>
  #include <pagedkv/kernels/divider.hpp>

namespace pagedkv::kernels {

/// Copies queries and stages into shared memory as buffers become empty.
template <class Element, class Numbers>
class latent_producer {
  using shape = warpgroup_latent_shape;
  using rows = shape::rows;
  using Number = typename Numbers::template of_products<typename expanded<Element>::element>;
  using query_rows = warpgroup_queries<Numbers, Number, largest_plain_dim, shape::columns, warpgroup_lanes>;
  static constexpr int row_steps = shape::tokens / 16;  // rows that a lane copies chunks of

 public:
  PAGEDKV_DEVICE latent_producer(const attention_call& call, const divider<std::int32_t>& block_size, int index)
      : call_(call), block_size_(block_size), index_(index), queries_(call, index) {}

  PAGEDKV_DEVICE void copy(const attention_walk& walk) {
    const auto stages = warpgroup_stages<shape::tokens>(walk);
    find(walk, stages.first_token);
    buffers_.queries.wait_until_empty(used_queries_);
    queries_.put(walk, buffers_.base + shape::queries, buffers_.base + shape::of_columns);
    publish_to_products();
    buffers_.queries.full(used_queries_).arrive_after_copies();
    buffers_.queries.full(used_queries_).arrive();
    ++used_queries_;
    copy_stages(walk, stages);
  }

 private:
  using stages_of_piece = warpgroup_stages<shape::tokens>;
  using chunk = packed_chunk<Element>;

  PAGEDKV_DEVICE void copy_stages(const attention_walk& walk, const stages_of_piece& stages) {
    for (auto stage = 0; stage < stages.count; ++stage) {
      registers<std::uint64_t, row_steps> starts;
      find_starts(starts);
      find(walk, stages.first_token + (stage + 1) * shape::tokens);
      PAGEDKV_UNROLL
      for (auto part = 0; part < shape::parts; ++part) {
        buffers_.part(part).wait_until_empty(used_stages_);
        copy_part(part, starts);
        buffers_.part(part).full(used_stages_).arrive_after_copies();
      }
      ++used_stages_;
    }
  }

  /// Packed tokens pass through registers, where they are expanded. As soon as a part has left, that of the next stage is
  /// read.
  PAGEDKV_DEVICE void copy_stages(const attention_walk& walk, const stages_of_piece& stages)
    requires packs_tokens<Element>
  {
    registers<std::uint64_t, row_steps> starts;
    typename chunk::template stage<row_steps> words;
    find_starts(starts);
    PAGEDKV_UNROLL
    for (auto part = 0; part < shape::parts; ++part) {
      read_part(part, starts, words);
    }
    find(walk, stages.first_token + shape::tokens);
    for (auto stage = 0; stage < stages.count; ++stage) {
      find_starts(starts);
      find(walk, stages.first_token + (stage + 2) * shape::tokens);
      PAGEDKV_UNROLL
      for (auto part = 0; part < shape::parts; ++part) {
        buffers_.part(part).wait_until_empty(used_stages_);
        put_part(part, words);
        if (stage + 1 < stages.count) {
          read_part(part, starts, words);
        }
        publish_to_products();
        buffers_.part(part).full(used_stages_).arrive();
      }
      ++used_stages_;
    }
  }

  /// Finds the block of one of the rows that this wave copies, well before it is used.
  PAGEDKV_DEVICE void find(const attention_walk& walk, std::int32_t first_token) {
    const auto place = first_token + index_ % (4 * row_steps) / 4 * 16 + index_ / 32 * 4 + index_ % 4;
    row_.find(call_, walk.row, block_size_, place);
  }

  /// The addresses of this lane's chunks in rows that other lanes have found; 0 where there is no row.
  PAGEDKV_DEVICE void find_starts(registers<std::uint64_t, row_steps>& starts) const {
    auto own = std::uint64_t{0};
    if (row_.block >= 0) {
      constexpr auto number_bytes = static_cast<std::int64_t>(sizeof(typename Element::storage));
      const auto number = static_cast<std::int64_t>(row_.offset * static_cast<std::int32_t>(call_.view.token_stride));
      own = reinterpret_cast<std::uint64_t>(call_.view.block(call_.layer, row_.block) + number * number_bytes);
    }
    PAGEDKV_UNROLL
    for (auto step = 0; step < row_steps; ++step) {
      const auto row = shuffle(own, step * 4 + index_ % 32 / 8);
      const auto of_lane = packs_tokens<Element> ? 0U : static_cast<unsigned>(index_ % 8) * vector_bytes;
      starts[step] = row != 0 ? row + of_lane : 0;
    }
  }

  /// Eight neighbouring lanes copy 128 neighbouring bytes of a row.
  PAGEDKV_DEVICE void copy_part(int part, const registers<std::uint64_t, row_steps>& starts) const {
    const auto to = buffers_.part_at(used_stages_, part) + rows::at(index_ / 32 * 4 + index_ % 32 / 8, index_ % 8);
    PAGEDKV_UNROLL
    for (auto step = 0; step < row_steps; ++step) {
      PAGEDKV_UNROLL
      for (auto block = 0; block < shape::blocks_of(part); ++block) {
        const auto at = static_cast<unsigned>(step) * next_rows + static_cast<unsigned>(block) * rows::block_bytes;
        copy_chunk(to + at,
                   reinterpret_cast<const std::byte*>(starts[step]) + (part * shape::value_blocks + block) * 128,
                   starts[step] != 0);
      }
    }
  }

  /// Reads this lane's chunks of a part, of the tokens whose addresses are given: zeros where there is none.
  template <class Words>
  PAGEDKV_DEVICE void read_part(int part, const registers<std::uint64_t, row_steps>& starts, Words& words) const {
    PAGEDKV_UNROLL
    for (auto step = 0; step < row_steps; ++step) {
      const auto* const from = reinterpret_cast<const std::byte*>(starts[step]);
      PAGEDKV_UNROLL
      for (auto i = 0; i < shape::blocks_of(part); ++i) {
        const auto block = part * shape::value_blocks + i;
        if (part == shape::keys_only) {
          words.wide[step] = {};
          if (from != nullptr) {
            words.wide[step] = chunk::read_wide(from, block * 8 + index_ % 8);
          }
          continue;
        }
        words.quantised[step][block] = {};
        if (from != nullptr) {
          words.quantised[step][block] = chunk::read_quantised(from, block * 8 + index_ % 8);
        }
        if (block * 8 % chunk::chunks_of_scale == 0) {
          words.scales[step][block * 8 / chunk::chunks_of_scale] =
              from != nullptr ? chunk::read_scale(from, block * 8) : 0.0F;
        }
      }
    }
  }

  template <class Words>
  PAGEDKV_DEVICE void put_part(int part, const Words& words) const {
    const auto to = buffers_.part_at(used_stages_, part) + rows::at(index_ / 32 * 4 + index_ % 32 / 8, index_ % 8);
    PAGEDKV_UNROLL
    for (auto step = 0; step < row_steps; ++step) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < shape::blocks_of(part); ++i) {
        const auto block = part * shape::value_blocks + i;
        const auto at = to + static_cast<unsigned>(step) * next_rows + static_cast<unsigned>(i) * rows::block_bytes;
        if (part == shape::keys_only) {
          put_chunk(at, words.wide[step].values);
        } else {
          const auto scale = words.scales[step][block * 8 / chunk::chunks_of_scale];
          put_chunk(at, chunk::expand(words.quantised[step][block], scale).values);
        }
      }
    }
  }

  const attention_call& call_;
  const divider<std::int32_t>& block_size_;
  int index_;
  query_rows queries_;
  latent_buffers buffers_;
  unsigned used_queries_ = 0;
  unsigned used_stages_ = 0;
  warpgroup_row row_;
};

}  // namespace pagedkv::kernels

#endif
