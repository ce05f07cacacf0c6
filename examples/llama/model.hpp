#pragma once

#include "config.hpp"
#include "files.hpp"
#include "numbers.hpp"
#include "step.hpp"

#include <pagedkv/host/thread_pool.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace llama {

/// A transformer in float32. Layers read what came before from a `memory`; the model itself keeps nothing of a
/// sequence.
class model {
 public:
  /// Reads `config.json` and the tensors beside it. Throws `bad_model`.
  explicit model(const std::filesystem::path& directory);

  [[nodiscard]] const model_config& config() const noexcept { return config_; }
  /// Returns the logits of the wanted tokens, `[wanted][vocabulary]`, valid until the next call.
  [[nodiscard]] std::span<const float> run(const step_tokens& step, memory& of_rows);
  [[nodiscard]] predictions predict(const step_tokens& step, memory& of_rows) {
    return {.logits = run(step, of_rows), .best = {}, .width = static_cast<std::size_t>(config_.vocabulary)};
  }
  /// Numbers of all weights.
  [[nodiscard]] std::int64_t num_weights() const noexcept { return num_weights_; }

 private:
  struct linear {
    tensor weights;
    tensor bias;
  };
  struct attention_weights {
    linear queries, keys, values, output;
    tensor query_norm, key_norm;
  };
  struct state_weights {
    linear in, out;
    tensor convolution, convolution_bias, step_bias, decay, skip, norm;
  };
  struct layer {
    tensor norm_before, norm_after;  // of attention or state; the second only in Gemma
    attention_weights attention;
    state_weights state;
    tensor norm_before_feed, norm_after_feed;
    linear gate, up, down;
  };

  [[nodiscard]] tensor take(const std::string& name, const std::vector<std::int64_t>& shape);
  [[nodiscard]] tensor take_if_any(const std::string& name, const std::vector<std::int64_t>& shape);
  [[nodiscard]] linear take_linear(const std::string& name, std::int64_t out, std::int64_t in);
  [[nodiscard]] layer take_layer(std::size_t index);
  [[nodiscard]] attention_weights take_attention(const std::string& prefix);
  [[nodiscard]] state_weights take_state(const std::string& prefix);

  void apply(const linear& weights, rows& in, std::int64_t width, rows& out);
  void normalize_all(rows& numbers, const tensor& weights, std::int64_t each) const;
  void turn(rows& heads, const step_tokens& step, const rotation& by);
  void attend(std::size_t index, const step_tokens& step, memory& of_rows);
  void advance_states(std::size_t index, const step_tokens& step, memory& of_rows);
  void advance(const state_weights& weights, std::span<const float> projected, float* state, std::span<float> out);
  void feed(const layer& weights);

  model_config config_;
  tensor_files files_;
  std::int64_t num_weights_ = 0;
  tensor embeddings_;
  tensor head_;  // empty: the embeddings
  tensor last_norm_;
  std::vector<layer> layers_;

  pagedkv::host::thread_pool threads_ = pagedkv::host::thread_pool(openblas_get_num_threads());
  rows hidden_, normed_, queries_, keys_, values_, attended_, gate_, up_, added_, wanted_, logits_;
  std::vector<float> angles_;
  std::vector<float> mixed_;
};

}  // namespace llama
