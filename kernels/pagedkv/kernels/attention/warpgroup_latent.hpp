#pragma once

#include <pagedkv/kernels/attention/launcher.hpp>
#include <pagedkv/kernels/attention/warpgroup_latent_buffers.hpp>
#include <pagedkv/kernels/attention/warpgroup_latent_consumer.hpp>

#include <cstddef>

#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

  #include <pagedkv/kernels/attention/packed_chunk.hpp>
  #include <pagedkv/kernels/attention/warpgroup_producer.hpp>
  #include <pagedkv/kernels/attention/warpgroup_queries.hpp>
  #include <pagedkv/kernels/row.hpp>

// The warpgroup that copies, in attention over latent vectors with products of warpgroups. Empty for other compilers.

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

  PAGEDKV_DEVICE void copy(const attention_piece& piece) {
    const auto stages = stages_of_piece(piece);
    find(piece, stages.first_token);
    buffers_.queries.wait_until_empty(used_queries_);
    // Addresses of queries are not kept for the next piece: stages need the registers.
    query_rows(call_, compute_again(index_))
        .put(piece, buffers_.base + shape::queries, buffers_.columns_at(used_queries_), 1.0F);
    if (index_ == 0) {
      put_piece(buffers_.piece_at(used_queries_), piece);
    }
    publish_to_products();
    buffers_.queries.full(used_queries_).arrive_after_copies();
    buffers_.queries.full(used_queries_).arrive();
    ++used_queries_;
    copy_stages(piece, stages);
  }

  /// After the last piece.
  PAGEDKV_DEVICE void end() const {
    buffers_.queries.wait_until_empty(used_queries_);
    if (index_ == 0) {
      end_pieces(buffers_.piece_at(used_queries_));
    }
    buffers_.queries.full(used_queries_).arrive();
    buffers_.queries.full(used_queries_).arrive();
    if constexpr (packs_tokens<Element>) {
      buffers_.end_packed_values(used_stages_, index_ == 0);
    }
  }

 private:
  PAGEDKV_DEVICE void copy_stages(const attention_piece& piece, const stages_of_piece& stages) {
    const auto index = static_cast<unsigned>(index_);
    auto own_row = std::uint64_t{0};
    for (auto stage = 0; stage < stages.count; ++stage) {
      const auto found = stage % found_stages;
      if (found == 0) {
        own_row = address_of_row();
        find(piece, stages.first_token + (stage + found_stages) * shape::tokens);
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

  /// Finds the blocks of the rows that this wave copies in the next stages, one for each lane. Loads return in order,
  /// so these wait for all copies in flight: they are issued some stages ahead.
  PAGEDKV_DEVICE void find(const attention_piece& piece, std::int32_t first_token) {
    const auto index = static_cast<unsigned>(index_);
    const auto row = index % rows_of_wave;
    const auto place = index % 32 / rows_of_wave * shape::tokens + row / 4 * 16 + index / 32 * 4 + row % 4;
    row_.find(call_, piece.row, block_size_, first_token + static_cast<std::int32_t>(place));
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

// The warpgroup that expands packed tokens, in attention over latent vectors with products of warpgroups. Empty for
// other compilers.

namespace pagedkv::kernels {

/// Expands the values of packed tokens where they were copied to. The rows that a wave writes hold what it reads.
template <class Element, class Numbers>
class latent_expander {
  using shape = warpgroup_latent_shape<Element>;
  using rows = typename shape::rows;
  using chunk = packed_chunk<Element, typename Numbers::half>;
  static constexpr int rows_of_wave = shape::tokens * 32 / warpgroup_lanes;
  static_assert(rows_of_wave == 8, "chunks are permuted alike in all waves");
  static_assert(shape::value_blocks == 4 && chunk::chunks_of_scale == 16, "a row's part has 16 chunks of two scales");

 public:
  PAGEDKV_DEVICE explicit latent_expander(int index) : lane_(index % 32), first_row_(index / 32 * rows_of_wave) {}

  /// Until the warpgroup that copies says that no stage follows.
  PAGEDKV_DEVICE void expand() const {
    for (auto use = 0U;; ++use) {
      PAGEDKV_UNROLL
      for (auto part = 0; part < shape::consumers; ++part) {
        buffers_.packed_values(use, part).wait(buffers_.part(part).parity_of(use));
      }
      if (buffers_.packed_values_ended()) {
        return;
      }
      PAGEDKV_UNROLL
      for (auto part = 0; part < shape::consumers; ++part) {
        expand_part(use, part);
      }
      publish_to_products();
      PAGEDKV_UNROLL
      for (auto part = 0; part < shape::consumers; ++part) {
        buffers_.part(part).full(use).arrive();
      }
    }
  }

 private:
  /// Eight neighbouring lanes read, in step `i`, four chunks of 16 bytes of rows 2 * i and 2 * i + 1 each, and write
  /// two chunks for each: the order in which a lane takes chunks makes the places that it writes to the same in all
  /// steps.
  PAGEDKV_DEVICE void expand_part(unsigned use, int part) const {
    constexpr auto steps = rows_of_wave / 2;
    constexpr auto row_bytes = 128U;
    const auto lane = static_cast<unsigned>(lane_);
    const auto odd_row = lane / 4 % 2;
    const auto start = buffers_.part_at(use, part) + (static_cast<unsigned>(first_row_) + odd_row) * row_bytes;
    const auto packed = start + lane / 16 * rows::block_bytes;
    const auto place = (lane / 8 % 2 * 4 ^ odd_row * 4 ^ lane % 4) * vector_bytes;
    const auto scale = start + static_cast<unsigned>(stored_part<Element>::of(part).blocks) * rows::block_bytes +
                       odd_row * 4 * vector_bytes + (static_cast<unsigned>(part) * 2 + lane / 16) * 4;
    const auto expanded = start + lane / 8 * rows::block_bytes;
    const auto first = (lane % 4 * 2 ^ odd_row) * vector_bytes;
    registers<lane_word, steps, 4> stored;
    registers<float, steps> scales;
    PAGEDKV_UNROLL
    for (auto i = 0U; i < steps; ++i) {
      take_chunk(packed + (place ^ i * vector_bytes) + i * 2 * row_bytes, stored[i]);
      scales[i] = take_float(scale + i * 2 * row_bytes);
    }
    __syncwarp();
    PAGEDKV_UNROLL
    for (auto i = 0U; i < steps; ++i) {
      const auto to = expanded + i * 2 * row_bytes;
      put_chunk(to + first, chunk::expand({stored[i][0], stored[i][1]}, scales[i]).values);
      put_chunk(to + (first ^ vector_bytes), chunk::expand({stored[i][2], stored[i][3]}, scales[i]).values);
    }
  }

  int lane_;
  int first_row_;
  latent_buffers<Element> buffers_;
};

}  // namespace pagedkv::kernels

#endif

#if defined(__CUDACC__) && !defined(__HIPCC__)

// Attention over latent vectors with Hopper's products of warpgroups. Other compilers see no such code.

namespace pagedkv::kernels {

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

/// Registers of a lane that copies, expands or multiplies. The warpgroups share what they are launched with; a lane
/// that asks for more waits without end.
template <class Element>
struct latent_registers {
  static constexpr int launched = packs_tokens<Element> ? 4 * 128 : 3 * 168;
  static constexpr int of_copies = packs_tokens<Element> ? 80 : 88;
  static constexpr int of_expansion = packs_tokens<Element> ? 48 : 0;
  static constexpr int of_products = (launched - of_copies - of_expansion) / 2;
  static_assert(of_products % 8 == 0);
};

/// The pieces of a share, as one of its workgroups has them.
template <class Element, class Numbers>
PAGEDKV_DEVICE void attend_latent_in_warpgroups(const attention_call& call, const divider<std::int32_t>& block_size,
                                                const latent_workgroup& workgroup) {
  using shape = warpgroup_latent_shape<Element>;
  using lane_registers = latent_registers<Element>;
  const auto index = static_cast<int>(local_index().x);
  if (index == 0) {
    latent_buffers<Element>().begin();
  }
  barrier();
  const auto of_products = index - shape::producers * warpgroup_lanes;
  if (of_products >= 0) {
    take_registers<lane_registers::of_products>();
    wait_for_previous_kernel();
    latent_consumer<Element, Numbers>(call, of_products).attend();
  } else if (index < warpgroup_lanes) {
    give_registers<lane_registers::of_copies>();
    auto producer = latent_producer<Element, Numbers>(call, block_size, index);
    auto walk = attention_walk(call, workgroup.share());
    // Plans are complete earlier than other inputs.
    wait_for_previous_kernel();
    let_next_kernel_start();
    for (; !walk.done; walk.next_piece()) {
      producer.copy(workgroup.part_of(walk));
    }
    producer.end();
  } else if constexpr (packs_tokens<Element>) {
    give_registers<lane_registers::of_expansion>();
    latent_expander<Element, Numbers>(index - warpgroup_lanes).expand();
  }
}

  #endif

template <auto Kernel, class Element>
[[nodiscard]] std::size_t latent_shared_bytes() {
  return warpgroup_shared_bytes<Kernel>(warpgroup_latent_shape<Element>::bytes);
}

/// Lanes of a workgroup of the kernel that needs this much dynamic shared memory.
template <class Element>
[[nodiscard]] int latent_lanes(std::size_t shared_bytes) {
  return shared_bytes > 0 ? warpgroup_latent_shape<Element>::lanes : group_lanes;
}

}  // namespace pagedkv::kernels

#else

namespace pagedkv::kernels {

template <auto Kernel, class Element>
[[nodiscard]] std::size_t latent_shared_bytes() {
  return 0;
}

template <class Element>
[[nodiscard]] int latent_lanes(std::size_t /*shared_bytes*/) {
  return group_lanes;
}

}  // namespace pagedkv::kernels

#endif
