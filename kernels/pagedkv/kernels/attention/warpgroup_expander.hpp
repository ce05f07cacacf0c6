#pragma once

// The warpgroup that expands numbers of 8 bits, in attention of prompts with products of warpgroups. Empty for other
// compilers.

#include <pagedkv/kernels/attention/warpgroup_buffers.hpp>

#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

  #include <pagedkv/kernels/attention/numbers.hpp>

namespace pagedkv::kernels {

/// Turns stored rows into rows of products: the keys of a stage, then its values, and so on. Values are multiplied by
/// their scales. Keys are not: large scores would magnify how they are rounded.
template <class Element, class Numbers, int KeyDim, int ValueDim>
class prefill_expander {
  using shape = warpgroup_prefill_shape<Element, KeyDim, ValueDim>;
  using rows = typename shape::rows;
  static constexpr unsigned parts = shape::stored_rows / 16;
  static_assert(KeyDim == 128 && ValueDim == 128, "a row's 16 numbers of 8 bits are eight lanes' chunks");

 public:
  /// A lane has 16 numbers of a row in each 16. Eight neighbouring lanes have halves of two rows, which they read from
  /// different banks, and put to different banks.
  PAGEDKV_DEVICE explicit prefill_expander(int index) {
    const auto lane = index % 32;
    const auto row = index / 32 * 4 + lane / 4 % 2 + lane / 16 * 2;
    const auto chunk = lane % 4 + (lane / 8 + lane / 4) % 2 * 4;
    stored_ = static_cast<unsigned>(row * shape::stored_row_bytes + chunk * vector_bytes);
    expanded_ = rows::at(row, chunk * 2);
    scale_ = static_cast<unsigned>(row) * 4;
  }

  /// Until the warpgroup that copies says that no stage follows.
  PAGEDKV_DEVICE void expand() {
    for (;; ++used_stages_) {
      buffers_.stored.wait_until_full(used_stored_);
      if (buffers_.stored_ended()) {
        return;
      }
      buffers_.keys.wait_until_empty(used_stages_);
      expand_tile<false>(buffers_.keys_at(used_stages_));
      buffers_.keys.full(used_stages_).arrive();
      buffers_.values.wait_until_empty(used_stages_);
      expand_tile<Element::scaled>(buffers_.values_at(used_stages_));
      buffers_.values.full(used_stages_).arrive();
    }
  }

 private:
  /// `Scales`: multiplies the numbers by the scales of values.
  template <bool Scales>
  PAGEDKV_DEVICE void expand_tile(unsigned to) {
    PAGEDKV_NO_UNROLL
    for (auto first = 0U; first < shape::tokens; first += shape::stored_rows) {
      buffers_.stored.wait_until_full(used_stored_);
      const auto from = buffers_.stored_at(used_stored_) + stored_;
      registers<lane_word, parts, 4> stored;
      registers<lane_word, parts> scales = {};
      PAGEDKV_UNROLL
      for (auto part = 0U; part < parts; ++part) {
        take_chunk(from + part * 16 * shape::stored_row_bytes, stored[part]);
        if constexpr (Scales) {
          const auto scale = take_float(buffers_.value_scales_at(used_stages_) + scale_ + (first + part * 16) * 4);
          scales[part] = pack<typename Numbers::brain>(scale, scale);
        }
      }
      PAGEDKV_UNROLL
      for (auto part = 0U; part < parts; ++part) {
        put_row<Scales>(to + expanded_ + (first / 16 + part) * next_rows, stored[part], scales[part]);
      }
      buffers_.stored.empty(used_stored_).arrive();
      ++used_stored_;
    }
  }

  template <bool Scales>
  static PAGEDKV_DEVICE void put_row(unsigned to, const registers<lane_word, 4>& stored,
                                     [[maybe_unused]] lane_word scales) {
    PAGEDKV_UNROLL
    for (auto chunk = 0U; chunk < 2; ++chunk) {
      registers<lane_word, 4> numbers;
      PAGEDKV_UNROLL
      for (auto word = 0U; word < 2; ++word) {
        registers<lane_word, 2> pairs;
        expand_to_brain<Element, Numbers>(stored[chunk * 2 + word], pairs);
        numbers[word * 2] = Scales ? multiply_brains(pairs[0], scales) : pairs[0];
        numbers[word * 2 + 1] = Scales ? multiply_brains(pairs[1], scales) : pairs[1];
      }
      put_chunk(to ^ chunk * vector_bytes, numbers);
    }
  }

  prefill_buffers<shape> buffers_;
  unsigned stored_;    // where the lane's first stored chunk is among the rows
  unsigned expanded_;  // where it goes among those of products
  unsigned scale_;
  unsigned used_stored_ = 0;
  unsigned used_stages_ = 0;
};

}  // namespace pagedkv::kernels

#endif
