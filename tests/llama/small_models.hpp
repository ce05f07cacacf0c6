#pragma once

#include <nlohmann/json.hpp>

#include "../../examples/llama/model.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace llama::test {

/// A model of reference.json, which `make_reference.py` writes: greedy tokens of `transformers`.
struct reference {
  struct generation {
    std::vector<pagedkv::token> prompt;
    std::vector<pagedkv::token> tokens;
    std::vector<float> logits;  // the first ones, of the prompt's last token
  };
  std::string name;
  nlohmann::json config;
  nlohmann::json shapes;
  std::vector<generation> cases;
};

[[nodiscard]] const std::vector<reference>& references();
[[nodiscard]] const reference& reference_of(const std::string& name);

/// The folder of the trained model, and what reference.json says of it.
[[nodiscard]] std::filesystem::path trained_model();
[[nodiscard]] const nlohmann::json& trained_reference();

/// A directory with `config.json` and `model.safetensors`, gone with the object.
class model_folder {
 public:
  explicit model_folder(const reference& of, const std::string& number_type = "F32");
  model_folder(const model_folder&) = delete;
  model_folder& operator=(const model_folder&) = delete;
  ~model_folder();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// K, V and states of one sequence in plain arrays, and attention as its definition says: the memory to compare with.
class plain_memory final : public memory {
 public:
  explicit plain_memory(const model_config& config) : config_(config), layers_(config.layers.size()) {}

  void attend(std::size_t layer, const float* queries, const float* keys, const float* values, float* output) override;
  float* state(std::size_t layer, std::size_t row) override;
  /// Tokens of the next pass.
  void expect(std::size_t num_tokens) noexcept { num_new_ = num_tokens; }

 private:
  struct kept {
    std::vector<float> keys, values, state;
  };
  const model_config& config_;
  std::vector<kept> layers_;
  std::size_t num_new_ = 0;
};

/// The greedy tokens behind a prompt, one forward pass for the prompt and one for each token.
[[nodiscard]] std::vector<pagedkv::token> generate_plainly(model& with, const std::vector<pagedkv::token>& prompt,
                                                           std::size_t count);

}  // namespace llama::test
