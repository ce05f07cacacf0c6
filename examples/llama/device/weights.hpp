#pragma once

#include "../config.hpp"
#include "../files.hpp"
#include "arrays.hpp"
#include "kernels.hpp"

#include <pagedkv/device/stream.hpp>
#include <pagedkv/policy/element/float32.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <type_traits>
#include <vector>

namespace llama::device {

/// The weights of a layer with a recurrent state, beside its matrices.
struct state_weights {
  device_array<float> convolution;       // [channel][kernel]
  device_array<float> convolution_bias;  // [channel]; empty in a model without
  device_array<float> step_bias;         // [head]
  device_array<float> decay;             // [head]
  device_array<float> skip;              // [head]
  device_array<float> norm;              // [inner]
};

/// The weights of a layer. Matrices that multiply the same rows are one: queries, keys and values; gate and up. Norms
/// that a model has not are empty.
template <class Element>
struct layer_weights {
  using matrix = device_array<storage_of<Element>>;

  device_array<float> norm;
  matrix projections;  // [(heads + 2 * KV heads) * head dim][hidden]; with a state [inner + channels + heads][hidden]
  device_array<float> query_norm;
  device_array<float> key_norm;
  state_weights state;              // of a layer with one
  matrix output;                    // [hidden][heads * head dim]; with a state [hidden][inner]
  device_array<float> output_norm;  // behind that product
  device_array<float> feed_norm;
  matrix gates;                   // [2 * intermediate][hidden]
  matrix down;                    // [hidden][intermediate]
  device_array<float> down_norm;  // behind that product
};

template <class Element>
struct model_weights {
  device_array<storage_of<Element>> embeddings;  // [vocabulary][hidden]
  device_array<storage_of<Element>> head;        // empty: the embeddings
  device_array<float> norm;
  std::vector<layer_weights<Element>> layers;

  /// Bytes that a step reads, whatever its tokens: all but the embeddings, unless these are the head.
  [[nodiscard]] std::int64_t bytes_of_step() const noexcept {
    constexpr auto each = sizeof(storage_of<Element>);
    auto numbers = head.size() == 0 ? embeddings.size() : head.size();
    for (const auto& layer : layers) {
      numbers += layer.projections.size() + layer.output.size() + layer.gates.size() + layer.down.size();
    }
    return static_cast<std::int64_t>(numbers * each);
  }
};

/// Numbers of a model's matrices.
struct matrix_sizes {
  std::size_t hidden, queries, keys, intermediate, vocabulary;
  std::size_t inner = 0, channels = 0, state_inputs = 0;  // of a token in layers with a state

  explicit matrix_sizes(const model_config& config)
      : hidden(static_cast<std::size_t>(config.hidden)),
        queries(static_cast<std::size_t>(config.num_heads) * static_cast<std::size_t>(config.head_dim)),
        keys(static_cast<std::size_t>(config.num_kv_heads) * static_cast<std::size_t>(config.head_dim)),
        intermediate(static_cast<std::size_t>(config.intermediate)),
        vocabulary(static_cast<std::size_t>(config.vocabulary)) {
    if (config.has(layer_kind::state)) {
      inner = static_cast<std::size_t>(config.state.inner());
      channels = static_cast<std::size_t>(config.state.channels());
      state_inputs = inner + channels + static_cast<std::size_t>(config.state.num_heads);
    }
  }

  /// Numbers of a token in the products of queries, keys and values.
  [[nodiscard]] std::size_t projected() const noexcept { return queries + 2 * keys; }
};

/// Reads tensors of a directory into a device's memory. Throws `bad_model`.
template <class Element>
class weight_reader {
 public:
  weight_reader(const model_config& config, const tensor_files& files)
      : config_(config), sizes_(config), files_(files) {}

  [[nodiscard]] model_weights<Element> read() const {
    auto made = model_weights<Element>{};
    made.embeddings = matrix({{"model.embed_tokens", sizes_.vocabulary}}, sizes_.hidden);
    if (!config_.tied_embeddings) {
      made.head = matrix({{"lm_head", sizes_.vocabulary}}, sizes_.hidden);
    }
    made.norm = norm(is(architecture::bamba) ? "model.final_layernorm" : "model.norm", sizes_.hidden);
    for (auto i = std::size_t{0}; i < config_.layers.size(); ++i) {
      made.layers.push_back(read_layer("model.layers." + std::to_string(i) + ".", config_.layers[i]));
    }
    return made;
  }

 private:
  struct part {
    std::string name;
    std::size_t num_out;
  };

  [[nodiscard]] bool is(architecture kind) const noexcept { return config_.kind == kind; }

  [[nodiscard]] layer_weights<Element> read_layer(const std::string& prefix, layer_kind kind) const {
    const auto feed = prefix + (is(architecture::bamba) ? "feed_forward." : "mlp.");
    auto made = layer_weights<Element>{};
    made.norm = norm(prefix + "input_layernorm", sizes_.hidden);
    if (kind == layer_kind::state) {
      add_state(prefix + "mamba.", made);
    } else {
      add_attention(prefix + "self_attn.", made);
    }
    if (is(architecture::gemma_3)) {
      made.output_norm = norm(prefix + "post_attention_layernorm", sizes_.hidden);
      made.feed_norm = norm(prefix + "pre_feedforward_layernorm", sizes_.hidden);
      made.down_norm = norm(prefix + "post_feedforward_layernorm", sizes_.hidden);
    } else {
      made.feed_norm =
          norm(prefix + (is(architecture::bamba) ? "pre_ff_layernorm" : "post_attention_layernorm"), sizes_.hidden);
    }
    made.gates =
        matrix({{feed + "gate_proj", sizes_.intermediate}, {feed + "up_proj", sizes_.intermediate}}, sizes_.hidden);
    made.down = matrix({{feed + "down_proj", sizes_.hidden}}, sizes_.intermediate);
    return made;
  }

  void add_attention(const std::string& attention, layer_weights<Element>& made) const {
    made.projections = matrix({{attention + "q_proj", sizes_.queries},
                               {attention + "k_proj", sizes_.keys},
                               {attention + "v_proj", sizes_.keys}},
                              sizes_.hidden);
    if (config_.normalizes_heads()) {
      made.query_norm = norm(attention + "q_norm", static_cast<std::size_t>(config_.head_dim));
      made.key_norm = norm(attention + "k_norm", static_cast<std::size_t>(config_.head_dim));
    }
    made.output = matrix({{attention + "o_proj", sizes_.hidden}}, sizes_.queries);
  }

  void add_state(const std::string& mamba, layer_weights<Element>& made) const {
    const auto& sizes = config_.state;
    made.projections = matrix({{mamba + "in_proj", sizes_.state_inputs}}, sizes_.hidden);
    made.output = matrix({{mamba + "out_proj", sizes_.hidden}}, sizes_.inner);
    auto& state = made.state;
    state.convolution = take(mamba + "conv1d.weight", {sizes.channels(), 1, sizes.kernel});
    if (files_.contains(mamba + "conv1d.bias")) {
      state.convolution_bias = take(mamba + "conv1d.bias", {sizes.channels()});
    }
    state.step_bias = take(mamba + "dt_bias", {sizes.num_heads});
    state.decay = take(mamba + "A_log", {sizes.num_heads});
    state.skip = take(mamba + "D", {sizes.num_heads});
    state.norm = norm(mamba + "norm", sizes_.inner);
  }

  /// Matrices one below the other.
  [[nodiscard]] device_array<storage_of<Element>> matrix(const std::vector<part>& parts, std::size_t num_in) const {
    auto numbers = std::vector<storage_of<Element>>{};
    auto num_rows = std::size_t{0};
    for (const auto& each : parts) {
      num_rows += each.num_out;
    }
    numbers.reserve(num_rows * num_in);
    for (const auto& [name, num_out] : parts) {
      if (files_.contains(name + ".bias")) {
        throw bad_model(name + ".bias: devices run models without biases");
      }
      const auto shape = std::vector{static_cast<std::int64_t>(num_out), static_cast<std::int64_t>(num_in)};
      add(name + ".weight", shape, numbers);
    }
    return uploaded(numbers);
  }

  /// Adds a tensor's numbers: their bytes, where the file has them as they are wanted.
  void add(const std::string& name, const std::vector<std::int64_t>& shape,
           std::vector<storage_of<Element>>& to) const {
    constexpr auto type = std::is_same_v<Element, pagedkv::float32> ? number_type::float32 : number_type::bfloat16;
    const auto bytes = files_.bytes(name, shape, type);
    if (!bytes.empty()) {
      const auto first = to.size();
      to.resize(first + bytes.size() / sizeof(storage_of<Element>));
      std::memcpy(to.data() + first, bytes.data(), bytes.size());
      return;
    }
    const auto taken = files_.take(name, shape);
    std::ranges::transform(taken.numbers(), std::back_inserter(to),
                           [](float number) { return Element::encode(number, 1); });
  }

  /// Gemma's files have weights of norms less one.
  [[nodiscard]] device_array<float> norm(const std::string& name, std::size_t size) const {
    return take(name + ".weight", {static_cast<std::int64_t>(size)}, is(architecture::gemma_3) ? 1.0F : 0.0F);
  }

  /// A tensor in float32, with `added` in each number.
  [[nodiscard]] device_array<float> take(const std::string& name, const std::vector<std::int64_t>& shape,
                                         float added = 0) const {
    const auto taken = files_.take(name, shape);
    auto sums = std::vector<float>{};
    std::ranges::transform(taken.numbers(), std::back_inserter(sums), [&](float number) { return number + added; });
    return uploaded(sums);
  }

  template <class T>
  [[nodiscard]] device_array<T> uploaded(const std::vector<T>& numbers) const {
    auto made = device_array<T>(numbers.size());
    copy(made.data(), numbers.data(), numbers.size(), runtime::host_to_device, stream_.get());
    stream_.synchronize().value();
    return made;
  }

  const model_config& config_;
  matrix_sizes sizes_;
  const tensor_files& files_;
  hip::stream stream_;
};

}  // namespace llama::device
