#pragma once

#include <nlohmann/json.hpp>

#include <pagedkv/core/ids.hpp>

#include <filesystem>
#include <functional>
#include <map>
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

/// A directory, gone with the object.
class test_folder {
 public:
  /// With these files: contents by name.
  explicit test_folder(const std::map<std::string, std::string>& files = {});
  test_folder(const test_folder&) = delete;
  test_folder& operator=(const test_folder&) = delete;
  ~test_folder();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// A directory with `config.json` and `model.safetensors`.
class model_folder : public test_folder {
 public:
  explicit model_folder(const reference& of, const std::string& number_type = "F32");
};

/// A directory with the trained model's `tokenizer.json`, changed.
[[nodiscard]] test_folder changed_tokenizer(const std::function<void(nlohmann::json&)>& change);

}  // namespace llama::test
