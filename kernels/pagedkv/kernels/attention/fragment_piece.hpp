#pragma once

#include <pagedkv/kernels/attention/fragment_products.hpp>
#include <pagedkv/kernels/attention/matrix_piece.hpp>

#include <cstdint>
#include <type_traits>

namespace pagedkv::kernels {

/// The state of a wave whose products are of fragments. There, the instructions of a tile count: plain tiles, whose
/// tokens all columns see that exist, of a call without options, have arithmetic of their own.
template <class Products>
class fragment_piece : public piece_state<Products> {
  using base = piece_state<Products>;
  using Matrix = typename Products::matrix;
  static constexpr int tiles = Products::tiles;

 public:
  using base::base;

  PAGEDKV_DEVICE void begin(const attention_walk& walk) {
    const auto& call = read_again(base::call_);
    base::begin(call, walk);
    find_plain_tiles(call, walk);
  }

  /// Whether `add_plain_tiles` takes a tile.
  [[nodiscard]] PAGEDKV_DEVICE bool is_plain(std::int32_t first_token) const {
    return first_token >= first_plain_ && first_token <= last_plain_;
  }

  /// Adds plain tiles, as many as are read at once. Columns that do not exist have zeros as queries.
  template <class ReadAhead>
  PAGEDKV_INLINED_DEVICE void add_plain_tiles(const ReadAhead& ahead) {
    constexpr auto count = ReadAhead::at_once;
    registers<plain_tile, count> all;
    auto grows = false;
    PAGEDKV_UNROLL
    for (auto n = 0; n < count; ++n) {
      base::products_.multiply_keys(ahead, n, all[n].products);
    }
    PAGEDKV_UNROLL
    for (auto n = 0; n < count; ++n) {
      base::take_scales(ahead, n, all[n]);
      const auto raises = find_exponents(all[n]);
      grows = grows || raises;
    }
    if (any(grows)) {
      PAGEDKV_UNROLL
      for (auto n = 0; n < count; ++n) {
        raise_for(all[n]);
      }
      PAGEDKV_UNROLL
      for (auto n = 0; n < count; ++n) {
        static_cast<void>(find_exponents(all[n]));
      }
    }
    PAGEDKV_UNROLL
    for (auto n = 0; n < count; ++n) {
      base::template add_values<true>(ahead, n, all[n].exponents, all[n].weight);
    }
  }

 private:
  struct plain_tile : base::tile_scales {
    registers<float, tiles, Matrix::sums> products;
    registers<float, tiles, Matrix::sums> exponents;
  };

  PAGEDKV_DEVICE void find_plain_tiles(const attention_call& call, const attention_walk& walk) {
    first_plain_ = 0;
    last_plain_ = INT32_MAX;
    PAGEDKV_UNROLL
    for (auto t = 0; t < tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto c = 0; c < Matrix::score_columns; ++c) {
        if (base::own_columns_.find(call, walk, base::own_columns_.of_score(t, c)).exists()) {
          narrow(base::rules_[t][c].first_token, base::rules_[t][c].last_token);
        }
      }
    }
    PAGEDKV_UNROLL
    for (auto distance = 1; distance < Matrix::key_parts; distance *= 2) {
      narrow(shuffle_xor(first_plain_, distance, Matrix::lanes), shuffle_xor(last_plain_, distance, Matrix::lanes));
    }
    first_plain_ = call.soft_cap <= 0.0F && call.alibi_slopes == nullptr ? first_plain_ : INT32_MAX;
    last_plain_ -= attention_tile - 1;
  }

  PAGEDKV_DEVICE void narrow(std::int32_t first, std::int32_t last) {
    first_plain_ = first > first_plain_ ? first : first_plain_;
    last_plain_ = last < last_plain_ ? last : last_plain_;
  }

  /// Turns products into exponents; whether the reference has to grow.
  [[nodiscard]] PAGEDKV_INLINED_DEVICE bool find_exponents(plain_tile& tile) const {
    auto grows = false;
    for_each_score<Matrix, tiles>([&](int t, int i) {
      const auto reference = base::reference_[t][i % Matrix::score_columns];
      tile.exponents[t][i] = fmaf(tile.products[t][i], tile.factor[t][i], -reference);
      grows = grows || tile.exponents[t][i] > base::headroom - tile.bias[i / Matrix::score_columns];
    });
    return grows;
  }

  PAGEDKV_INLINED_DEVICE void raise_for(const plain_tile& tile) {
    registers<float, tiles, Matrix::sums> scores;
    for_each_score<Matrix, tiles>([&](int t, int i) { scores[t][i] = tile.products[t][i] * tile.factor[t][i]; });
    base::raise_reference(scores, tile.bias);
  }

  std::int32_t first_plain_;  // the first and the last token with which a plain tile begins
  std::int32_t last_plain_;
};

/// Adds the tiles of a piece: several at once where all are plain.
template <class Reader, class Products>
PAGEDKV_INLINED_DEVICE void add_tiles(const attention_call& call, const attention_walk& walk, Reader& reader,
                                      fragment_piece<Products>& state) {
  constexpr auto at_once = std::remove_reference_t<decltype(reader.tiles)>::at_once;
  for (auto tile = walk.tile; tile < walk.end;) {
    const auto first_token = walk.first_token(read_again(call), tile);
    auto plain = tile + at_once <= walk.end && state.is_plain(first_token);
    if constexpr (at_once > 1) {
      const auto last = tile + at_once - 1;
      plain = plain && state.is_plain(walk.first_token(read_again(call), last));
    }
    const auto count = plain ? at_once : 1;
    reader.tiles.begin_tiles(count);
    PAGEDKV_NO_UNROLL
    for (auto i = 0; i < count; ++i) {
      reader.read_next();
    }
    if (plain) {
      state.add_plain_tiles(reader.tiles);
    } else {
      state.add_tile(reader.tiles, first_token);
    }
    tile += count;
  }
}

}  // namespace pagedkv::kernels
