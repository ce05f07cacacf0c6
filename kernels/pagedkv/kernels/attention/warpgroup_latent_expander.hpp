#pragma once

// The warpgroup that expands packed tokens, in attention over latent vectors with products of warpgroups. Empty for other
// compilers.

#include <pagedkv/kernels/attention/warpgroup_latent_buffers.hpp>

#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

  #include <pagedkv/kernels/attention/packed_chunk.hpp>

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
  /// In step `i`, eight neighbouring lanes read four chunks of 16 bytes of rows 2 * i and 2 * i + 1 each, and write two
  /// chunks for each: the order in which a lane takes chunks makes the places that it writes to the same in all steps.
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
