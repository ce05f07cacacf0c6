#pragma once

#include <nlohmann/json_fwd.hpp>

#include <pagedkv/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace llama {

class tensor_files;

enum class architecture : std::uint8_t { llama, qwen_3, gemma_3, bamba };
enum class layer_kind : std::uint8_t { full, window, state };

/// The factors of rotary embeddings: of each pair of numbers of a head, the angle that a position adds.
struct rotation {
  std::vector<float> frequencies;   // of the first `2 * frequencies.size()` numbers; the rest is not turned
  std::vector<float> of_long = {};  // of texts that are long; empty: the same
  float scale = 1;                  // of sines and cosines
};

/// Sizes of the layers with a recurrent state, Mamba-2's.
struct state_sizes {
  std::int32_t num_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t num_groups = 0;  // heads of a group share B and C
  std::int32_t state_dim = 0;
  std::int32_t kernel = 0;  // tokens that the convolution reads

  [[nodiscard]] std::int32_t inner() const noexcept { return num_heads * head_dim; }
  /// Channels of the convolution: x, B and C.
  [[nodiscard]] std::int32_t channels() const noexcept { return inner() + 2 * num_groups * state_dim; }
  /// Float32 numbers of one layer's state: the convolution's last inputs, then the sums.
  [[nodiscard]] std::int64_t numbers() const noexcept {
    return std::int64_t{channels()} * (kernel - 1) + std::int64_t{inner()} * state_dim;
  }
};

/// Where the cache has the K/V or the state of a layer.
struct layer_place {
  std::size_t group;
  std::int32_t index;  // of the layer in its group
};

/// A model as its `config.json` describes it.
struct model_config {
  architecture kind = architecture::llama;
  std::int32_t vocabulary = 0;
  std::int32_t hidden = 0;
  std::int32_t intermediate = 0;
  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t context = 0;        // tokens that the model was trained for
  std::int32_t window = 0;         // tokens that a layer of kind window sees, the query's own included
  std::int32_t most_of_short = 0;  // tokens of a text that is not long; 0: no text is
  float norm_epsilon = 0;
  float attention_scale = 0;
  float embedding_scale = 1;
  bool tied_embeddings = false;
  bool gelu = false;  // in place of SiLU
  std::vector<layer_kind> layers;
  rotation full_rotation;
  rotation window_rotation;
  state_sizes state;
  std::vector<std::int32_t> end_tokens;

  /// Reads `config.json`. Throws `bad_model` for an architecture that is not known, and for sizes that are missing or
  /// do not fit each other.
  [[nodiscard]] static model_config read(const std::filesystem::path& directory);
  [[nodiscard]] static model_config parse(const nlohmann::json& from);

  [[nodiscard]] bool has(layer_kind wanted) const noexcept;
  /// Whether every layer attends to all tokens.
  [[nodiscard]] bool attends_to_all() const noexcept { return !has(layer_kind::window) && !has(layer_kind::state); }
  /// Whether a text of so many tokens has the rotation of long ones, from its first token on.
  [[nodiscard]] bool is_long(std::int64_t num_tokens) const noexcept {
    return most_of_short > 0 && num_tokens > most_of_short;
  }
  /// Whether queries and keys are normalised, head by head.
  [[nodiscard]] bool normalizes_heads() const noexcept {
    return kind == architecture::qwen_3 || kind == architecture::gemma_3;
  }
  /// The groups of the cache: one for each kind of layers that the model has, in the order of `layer_kind`.
  [[nodiscard]] pagedkv::group_list groups() const;
  /// Of each layer, in these groups.
  [[nodiscard]] std::vector<layer_place> places() const;
};

/// The tensors of a model. Matrices that files of Phi-3's kind have one below the other are apart. Throws `bad_model`.
[[nodiscard]] tensor_files read_tensors(const std::filesystem::path& directory, const model_config& of);

}  // namespace llama
