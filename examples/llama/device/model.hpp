#pragma once

#include "../config.hpp"
#include "../step.hpp"
#include "arrays.hpp"
#include "blas.hpp"
#include "clusters.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "state_kernels.hpp"
#include "tiles.hpp"
#include "weights.hpp"

#include <pagedkv/device/stream.hpp>
#include <pagedkv/kernels/attention/launcher.hpp>
#include <pagedkv/storage/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <utility>
#include <vector>

namespace llama::device {

/// A row of angles lies in memory for each.
inline constexpr auto longest_context = std::int32_t{1} << 20;
/// Rows of grids' second extent.
inline constexpr auto most_tokens_of_step = std::size_t{65'535};

/// Throws `bad_model` for a model that devices do not run.
[[nodiscard]] inline const model_config& checked(const model_config& config) {
  if (config.context > longest_context) {
    throw bad_model("devices run models whose max_position_embeddings is known, and at most 1,048,576");
  }
  if (config.hidden % 8 != 0 || config.intermediate % 8 != 0 || config.head_dim % 8 != 0 ||
      config.vocabulary % 2 != 0) {
    throw bad_model("devices run models whose sizes are multiples of eight, with an even vocabulary");
  }
  if (config.head_dim > kernels::largest_attention_dim) {
    throw bad_model("devices run models whose heads have at most 256 numbers");
  }
  if (config.state.num_heads % 2 != 0 || config.state.state_dim > largest_state_dim) {
    throw bad_model("devices run models with an even mamba_n_heads, and a mamba_d_state of at most 256");
  }
  return config;
}

/// Throws `std::invalid_argument` for steps that kernels' grids do not hold.
[[nodiscard]] inline const step_limits& checked(const step_limits& limits) {
  if (limits.max_tokens > most_tokens_of_step) {
    throw std::invalid_argument("a step on a device computes at most 65,535 tokens");
  }
  return limits;
}

/// Throws `pagedkv::exception` where there is no device.
[[nodiscard]] inline runtime::device_properties find_device() {
  auto properties = runtime::device_properties{};
  hip::require(runtime::get_device_properties(&properties, 0), "the properties of a device");
  return properties;
}

/// A transformer on a device, with weights and K/V of `Element`, and sums in float32.
template <class Element>
class model {
 public:
  using number = storage_of<Element>;

  /// Throws `bad_model`, `std::invalid_argument` for steps of more than 65,535 tokens, and `pagedkv::exception` where
  /// there is no room.
  model(const model_config& config, model_weights<Element> weights, const step_limits& limits)
      : config_(checked(config)), sizes_(config_), weights_(std::move(weights)), limits_(checked(limits)) {
    full_angles_ = make_angles(config_.full_rotation);
    window_angles_ = make_angles(config_.window_rotation);
    const auto none = 0U;
    copy(num_claimed_.data(), &none, 1, runtime::host_to_device, stream_.get());
    stream_.synchronize().value();
  }
  model(const std::filesystem::path& directory, const step_limits& limits)
      : model(model_config::read(directory), directory, limits) {}

  [[nodiscard]] const model_config& config() const noexcept { return config_; }
  [[nodiscard]] const model_weights<Element>& weights() const noexcept { return weights_; }
  [[nodiscard]] const step_limits& limits() const noexcept { return limits_; }
  /// Tokens of a sequence, as many as there are angles for.
  [[nodiscard]] std::size_t longest() const noexcept { return static_cast<std::size_t>(config_.context); }
  /// On which passes are computed.
  [[nodiscard]] runtime::stream stream() const noexcept { return stream_.get(); }

  /// Enqueues a pass, which reads `of_rows` until it has ended.
  void begin(const step_tokens& step, step_memory<Element>& of_rows);
  /// Waits for the pass that began last.
  [[nodiscard]] predictions finish();

 private:
  model(const model_config& config, const std::filesystem::path& directory, const step_limits& limits)
      : model(config, weight_reader<Element>(checked(config), read_tensors(directory, config)).read(), limits) {}

  /// A row of cosines, then of sines, for each position; behind all of them, the same for positions in long texts.
  [[nodiscard]] device_array<float> make_angles(const rotation& of) const;

  void enqueue(const step_inputs& in, runtime::stream stream);
  /// Of hidden rows: those of these indices, or the first ones.
  void normalize(std::size_t count, const std::int32_t* rows, const device_array<float>& weights,
                 runtime::stream stream);
  void normalize_heads_of(const layer_weights<Element>& layer, std::size_t num_rows, runtime::stream stream);
  /// `attended_`, of hidden rows in a layer.
  void attend(std::size_t layer, const step_inputs& in, runtime::stream stream);
  void advance_states(std::size_t layer, const step_inputs& in, runtime::stream stream);
  /// `gated_[r]`, of hidden row r.
  void multiply_gates(const layer_weights<Element>& layer, std::size_t num_rows, runtime::stream stream);
  /// `result[r]`, of hidden row r.
  template <class Number>
  void multiply(const device_array<number>& weights, std::size_t num_rows, Number* result, runtime::stream stream);
  /// `result[r] = weights * rows[r]`.
  template <class Number>
  void multiply(const step_rows<Element>& rows, const device_array<number>& weights, std::int32_t num_in,
                Number* result, runtime::stream stream);
  /// Numbers to add to hidden rows: `weights * rows[r]`, normalised if there is a norm.
  struct addition {
    const device_array<number>& rows;
    const device_array<number>& weights;
    const device_array<float>& norm;
  };
  void add_product(const addition& of, std::size_t num_rows, runtime::stream stream);
  /// A product of hidden rows, and the weights of the norm before it.
  struct following_product {
    const device_array<float>& norm;
    const device_array<number>& weights;
  };
  /// Adds, and prepares the input of the product that follows: normalised rows, or where kernels by matrix instructions
  /// compute both products, rows that are not yet divided and sums of squares.
  void add_product(const addition& of, std::size_t num_rows, const following_product& next, runtime::stream stream);
  /// Whether a kernel for few rows multiplies so many. It puts the results of pairs of the matrix' rows where they say.
  template <class Pairs>
  [[nodiscard]] bool multiply_few(const step_rows<Element>& rows, const device_array<number>& weights,
                                  const Pairs& pairs, runtime::stream stream);
  /// Whether a kernel by matrix instructions multiplies so many rows of `num_in` numbers with a matrix: in tiles, or
  /// more rows in clusters.
  [[nodiscard]] bool takes_matrix(std::size_t num_rows, const device_array<number>& weights, std::int32_t num_in) const;
  template <class Pairs>
  void start_matrix(const step_rows<Element>& rows, const device_array<number>& weights, const Pairs& pairs,
                    runtime::stream stream);
  /// The hidden rows as they were prepared for a product.
  [[nodiscard]] step_rows<Element> prepared_rows(std::size_t num_rows) const;
  void find_best_tokens(std::size_t num_rows, runtime::stream stream);
  void enqueue_copies_of_results(runtime::stream stream);

  model_config config_;
  matrix_sizes sizes_;
  model_weights<Element> weights_;
  step_limits limits_;
  hip::stream stream_;
  blas blas_;
  runtime::device_properties device_ = find_device();
  bool has_tiles_ = device_.matrices == runtime::matrix_instructions::mma && has_room_for_tiles();
  std::int32_t small_clusters_ = has_tiles_ ? clusters_at_once<Element, small_cluster>() : 0;
  std::int32_t large_clusters_ = has_tiles_ ? clusters_at_once<Element, large_cluster>() : 0;
  std::vector<layer_place> places_ = config_.places();
  device_array<float> full_angles_;
  device_array<float> window_angles_;

  std::size_t num_wanted_ = 0;  // of the pass that began last
  bool is_greedy_ = false;

  device_array<float> hidden_{limits_.max_tokens * sizes_.hidden};
  device_array<number> normed_{limits_.max_tokens * sizes_.hidden};
  /// Where there are sums of squares, each row of `normed_` is still to be divided by the root of their mean.
  device_array<float> squares_{static_cast<std::size_t>(
      std::max(tile_rows * parts_of_squares(config_.hidden), cluster_rows * parts_by_clusters(config_.hidden)))};
  std::int32_t num_parts_ = 0;
  device_array<unsigned> num_claimed_{1};  // shares of the product under way
  device_array<number> projected_{limits_.max_tokens * sizes_.projected()};
  device_array<number> attended_{limits_.max_tokens * std::max(sizes_.queries, sizes_.inner)};
  device_array<float> added_{config_.kind == architecture::gemma_3 ? limits_.max_tokens * sizes_.hidden : 0};
  device_array<float> state_inputs_{limits_.max_tokens * sizes_.state_inputs};  // gates, what is convolved, steps
  device_array<float> convolved_{limits_.max_tokens * sizes_.channels};
  device_array<float> state_results_{limits_.max_tokens * sizes_.inner};
  device_array<number> gates_{limits_.max_tokens * 2 * sizes_.intermediate};
  device_array<number> gated_{limits_.max_tokens * sizes_.intermediate};
  device_array<float> logits_{limits_.max_wanted * sizes_.vocabulary};
  device_array<best_token> best_parts_{limits_.max_wanted * parts_of_row};
  device_array<pagedkv::token> best_{limits_.max_wanted};
  pinned_array<pagedkv::token> best_of_host_{limits_.max_wanted};
  pinned_array<float> logits_of_host_{limits_.max_wanted * sizes_.vocabulary};
};

}  // namespace llama::device
