#pragma once

#include <pagedkv/kernels/attention/piece_results.hpp>
#include <pagedkv/kernels/attention/row_products.hpp>

namespace pagedkv::kernels {

/// The state of a wave for one piece: rules and softmax of its columns around the products of keys and values. `Trees`:
/// calls may have tree masks.
template <class Products, bool Trees = false>
class piece_state : public piece_results<Products> {
  using base = piece_results<Products>;
  using Matrix = typename Products::matrix;
  using Element = typename Products::element;
  static constexpr int tiles = Products::tiles;

 public:
  /// `wave`: among those that share a task.
  PAGEDKV_DEVICE piece_state(const attention_call& call, int lane, int wave)
      : base(call, {lane, wave}), products_({lane, wave}) {}

  PAGEDKV_DEVICE void begin(const attention_walk& walk) { begin(read_again(call_), walk); }

  /// Whether a column of this wave sees a token of the tile.
  [[nodiscard]] PAGEDKV_DEVICE bool sees(std::int32_t first_token) const {
    auto seen = false;
    PAGEDKV_UNROLL
    for (auto t = 0; t < tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto c = 0; c < Matrix::score_columns; ++c) {
        seen =
            seen || (first_token <= rules_[t][c].last_token && first_token + attention_tile > rules_[t][c].first_token);
      }
    }
    return any(seen) != 0;
  }

  template <class Tile>
  PAGEDKV_INLINED_DEVICE void add_tile(const Tile& tile, std::int32_t first_token) {
    registers<float, tiles, Matrix::sums> scores;
    products_.multiply_keys(tile, 0, scores);
    tile_scales scales;
    take_scales(tile, 0, scales);
    for_each_score<Matrix, tiles>([&](int t, int i) { scores[t][i] *= scales.factor[t][i]; });
    apply_options(scores, first_token);
    if constexpr (Trees) {
      if (call_.tree_masks != nullptr) {
        apply_tree_masks(scores, first_token);
      }
    }
    auto grows = false;
    for_each_score<Matrix, tiles>([&](int t, int i) {
      const auto c = i % Matrix::score_columns;
      const auto r = i / Matrix::score_columns;
      const auto token = first_token + Matrix::score_row(own_columns_.lane, r);
      scores[t][i] = rules_[t][c].hide(scores[t][i], token);
      grows = grows || scores[t][i] + scales.bias[r] > reference_[t][c] + headroom;
    });
    if (any(grows)) {
      raise_reference(scores, scales.bias);
    }
    for_each_score<Matrix, tiles>([&](int t, int i) {
      const auto reference = reference_[t][i % Matrix::score_columns];
      scores[t][i] -= reference == -INFINITY ? 0.0F : reference;
    });
    add_values<false>(tile, 0, scores, scales.weight);
  }

 protected:
  using base::call_;
  using base::output_;
  using base::own_columns_;
  using base::reference_;
  using base::sum_;

  // A sum may grow to 2^headroom times its reference before the reference is replaced.
  static constexpr float headroom = 8.0F;
  static constexpr float least_bias = -64.0F;

  /// Factors from the scales of a tile's tokens.
  struct tile_scales {
    registers<float, tiles, Matrix::sums> factor;  // of products, to make them scores
    registers<float, Matrix::score_rows> weight;   // of the values
    registers<float, Matrix::score_rows> bias;     // the weight's logarithm
  };

  PAGEDKV_DEVICE void begin(const attention_call& call, const attention_walk& walk) {
    const auto factor = call.soft_cap > 0.0F ? call.scale : call.scale * log2_e;
    products_.load_queries(call, walk, factor * static_key_scale<Element>(call, walk));
    PAGEDKV_UNROLL
    for (auto t = 0; t < tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto c = 0; c < Matrix::score_columns; ++c) {
        const auto query = own_columns_.find(call, walk, own_columns_.of_score(t, c));
        rules_[t][c] = score_rule::of(call, query);
        if constexpr (Trees) {
          branches_[t][c] = hidden_branches::of(call, walk.row, query);
        }
      }
    }
    base::clear();
  }

  template <class Tile>
  PAGEDKV_INLINED_DEVICE void take_scales(const Tile& tile, int n, tile_scales& scales) const {
    PAGEDKV_UNROLL
    for (auto r = 0; r < Matrix::score_rows; ++r) {
      scales.weight[r] = 1.0F;
      scales.bias[r] = 0.0F;
      auto key_scale = 1.0F;
      if constexpr (Element::scaled) {
        const auto of_token = tile.scales_of(n, r);
        key_scale = of_token.values[0];
        scales.weight[r] = of_token.values[1];
        scales.bias[r] = fmaxf(binary_logarithm(scales.weight[r]), least_bias);
      }
      PAGEDKV_UNROLL
      for (auto t = 0; t < tiles; ++t) {
        PAGEDKV_UNROLL
        for (auto c = 0; c < Matrix::score_columns; ++c) {
          const auto factor = products_.queries.factors[t][c];
          scales.factor[t][r * Matrix::score_columns + c] = Element::scaled ? key_scale * factor : factor;
        }
      }
    }
  }

  /// Adds the values of tile `n`. `exponents`: those of probabilities. `Whole`: all rows of the tile were read.
  template <bool Whole, class Tile>
  PAGEDKV_INLINED_DEVICE void add_values(const Tile& tile, int n,
                                         const registers<float, tiles, Matrix::sums>& exponents,
                                         const registers<float, Matrix::score_rows>& weight) {
    registers<typename Matrix::weights, tiles> weights;
    PAGEDKV_UNROLL
    for (auto t = 0; t < tiles; ++t) {
      registers<float, Matrix::sums> probabilities;
      PAGEDKV_UNROLL
      for (auto i = 0; i < Matrix::sums; ++i) {
        const auto probability = power_of_two(exponents[t][i]);
        sum_[t][i % Matrix::score_columns] += probability;
        // A row that was not read has undefined scale bits; its probabilities are zero.
        probabilities[i] =
            Element::scaled && !Whole && probability == 0.0F ? 0.0F : probability * weight[i / Matrix::score_columns];
      }
      weights[t] = Matrix::template make_weights<typename Products::number>(probabilities);
    }
    Products::multiply_values(tile, n, weights, output_);
  }

  PAGEDKV_INLINED_DEVICE void apply_options(registers<float, tiles, Matrix::sums>& scores, std::int32_t first_token) {
    if (call_.soft_cap > 0.0F) {
      for_each_score<Matrix, tiles>(
          [&](int t, int i) { scores[t][i] = call_.soft_cap * log2_e * tanhf(scores[t][i] / call_.soft_cap); });
    }
    if (call_.alibi_slopes != nullptr) {
      for_each_score<Matrix, tiles>([&](int t, int i) {
        const auto token = first_token + Matrix::score_row(own_columns_.lane, i / Matrix::score_columns);
        scores[t][i] += rules_[t][i % Matrix::score_columns].bias(token);
      });
    }
  }

  PAGEDKV_DEVICE void apply_tree_masks(registers<float, tiles, Matrix::sums>& scores, std::int32_t first_token) const {
    for_each_score<Matrix, tiles>([&](int t, int i) {
      const auto token = first_token + Matrix::score_row(own_columns_.lane, i / Matrix::score_columns);
      scores[t][i] = branches_[t][i % Matrix::score_columns].hide(token) ? -INFINITY : scores[t][i];
    });
  }

  PAGEDKV_INLINED_DEVICE void raise_reference(const registers<float, tiles, Matrix::sums>& scores,
                                              const registers<float, Matrix::score_rows>& bias) {
    registers<float, tiles, Matrix::score_columns> factor;
    PAGEDKV_UNROLL
    for (auto t = 0; t < tiles; ++t) {
      PAGEDKV_UNROLL
      for (auto c = 0; c < Matrix::score_columns; ++c) {
        auto largest = reference_[t][c];
        PAGEDKV_UNROLL
        for (auto r = 0; r < Matrix::score_rows; ++r) {
          largest = fmaxf(largest, scores[t][r * Matrix::score_columns + c] + bias[r]);
        }
        largest = Matrix::reduce_rows(largest, [](float a, float b) { return fmaxf(a, b); });
        factor[t][c] = largest == -INFINITY ? 1.0F : power_of_two(reference_[t][c] - largest);
        reference_[t][c] = largest;
        sum_[t][c] *= factor[t][c];
      }
    }
    base::for_each_output([&](float& number, int t, int c) { number *= factor[t][c]; });
  }

  Products products_;
  registers<score_rule, tiles, Matrix::score_columns> rules_;
  registers<hidden_branches, tiles, (Trees ? Matrix::score_columns : 1)> branches_;
};

}  // namespace pagedkv::kernels
