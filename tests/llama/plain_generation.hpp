#pragma once

#include "../../examples/llama/model.hpp"

#include <cstddef>
#include <vector>

namespace llama::test {

/// K, V and states of one sequence in plain arrays, and attention as its definition says: the memory to compare with.
class plain_memory final : public memory {
 public:
  explicit plain_memory(const model_config& config) : config_(&config), layers_(config.layers.size()) {}

  void attend(std::size_t layer, const float* queries, const float* keys, const float* values, float* output) override;
  float* state(std::size_t layer, std::size_t row) override;
  /// Tokens of the next pass.
  void expect(std::size_t num_tokens) noexcept { num_new_ = num_tokens; }

 private:
  struct kept {
    std::vector<float> keys, values, state;
  };
  const model_config* config_;
  std::vector<kept> layers_;
  std::size_t num_new_ = 0;
};

/// The greedy tokens behind a prompt, one forward pass for the prompt and one for each token.
[[nodiscard]] std::vector<pagedkv::token> generate_plainly(model& with, const std::vector<pagedkv::token>& prompt,
                                                           std::size_t count);

}  // namespace llama::test
