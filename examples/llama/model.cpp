#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace llama {

model::model(const std::filesystem::path& directory)
    : config_(model_config::read(directory)), files_(read_tensors(directory, config_)) {
  embeddings_ = take("model.embed_tokens.weight", {config_.vocabulary, config_.hidden});
  if (!config_.tied_embeddings) {
    head_ = take("lm_head.weight", {config_.vocabulary, config_.hidden});
  }
  last_norm_ = take(config_.kind == architecture::bamba ? "model.final_layernorm.weight" : "model.norm.weight",
                    {config_.hidden});
  for (auto i = std::size_t{0}; i < config_.layers.size(); ++i) {
    layers_.push_back(take_layer(i));
  }
}

tensor model::take(const std::string& name, const std::vector<std::int64_t>& shape) {
  auto taken = files_.take(name, shape);
  num_weights_ += static_cast<std::int64_t>(taken.numbers().size());
  return taken;
}

tensor model::take_if_any(const std::string& name, const std::vector<std::int64_t>& shape) {
  return files_.contains(name) ? take(name, shape) : tensor{};
}

model::linear model::take_linear(const std::string& name, std::int64_t out, std::int64_t in) {
  return {take(name + ".weight", {out, in}), take_if_any(name + ".bias", {out})};
}

model::layer model::take_layer(std::size_t index) {
  const auto prefix = "model.layers." + std::to_string(index) + ".";
  const auto hidden = std::int64_t{config_.hidden};
  const auto norm = [&](const char* name) { return take(prefix + name + ".weight", {hidden}); };
  auto made = layer{};
  made.norm_before = norm("input_layernorm");
  if (config_.layers[index] == layer_kind::state) {
    made.state = take_state(prefix + "mamba.");
  } else {
    made.attention = take_attention(prefix + "self_attn.");
  }
  auto feed_name = prefix + "mlp.";
  switch (config_.kind) {
    case architecture::gemma_3:
      made.norm_after = norm("post_attention_layernorm");
      made.norm_before_feed = norm("pre_feedforward_layernorm");
      made.norm_after_feed = norm("post_feedforward_layernorm");
      break;
    case architecture::bamba:
      made.norm_before_feed = norm("pre_ff_layernorm");
      feed_name = prefix + "feed_forward.";
      break;
    case architecture::llama:
    case architecture::qwen_3: made.norm_before_feed = norm("post_attention_layernorm"); break;
  }
  made.gate = take_linear(feed_name + "gate_proj", config_.intermediate, hidden);
  made.up = take_linear(feed_name + "up_proj", config_.intermediate, hidden);
  made.down = take_linear(feed_name + "down_proj", hidden, config_.intermediate);
  return made;
}

model::attention_weights model::take_attention(const std::string& prefix) {
  const auto hidden = std::int64_t{config_.hidden};
  const auto of_queries = std::int64_t{config_.num_heads} * config_.head_dim;
  const auto of_keys = std::int64_t{config_.num_kv_heads} * config_.head_dim;
  auto made = attention_weights{};
  made.queries = take_linear(prefix + "q_proj", of_queries, hidden);
  made.keys = take_linear(prefix + "k_proj", of_keys, hidden);
  made.values = take_linear(prefix + "v_proj", of_keys, hidden);
  made.output = take_linear(prefix + "o_proj", hidden, of_queries);
  if (config_.normalizes_heads()) {
    made.query_norm = take(prefix + "q_norm.weight", {config_.head_dim});
    made.key_norm = take(prefix + "k_norm.weight", {config_.head_dim});
  }
  return made;
}

model::state_weights model::take_state(const std::string& prefix) {
  const auto& sizes = config_.state;
  const auto inner = std::int64_t{sizes.inner()};
  auto made = state_weights{};
  made.in = take_linear(prefix + "in_proj", inner + sizes.channels() + sizes.num_heads, config_.hidden);
  made.out = take_linear(prefix + "out_proj", config_.hidden, inner);
  made.convolution = take(prefix + "conv1d.weight", {sizes.channels(), 1, sizes.kernel});
  made.convolution_bias = take_if_any(prefix + "conv1d.bias", {sizes.channels()});
  made.step_bias = take(prefix + "dt_bias", {sizes.num_heads});
  made.decay = take(prefix + "A_log", {sizes.num_heads});
  made.skip = take(prefix + "D", {sizes.num_heads});
  made.norm = take(prefix + "norm.weight", {inner});
  return made;
}

void model::apply(const linear& weights, rows& in, std::int64_t width, rows& out) {
  out.resize(in.size(), width);
  multiply(in.data(), in.size(), in.width(), weights.weights.data(), width, out.data(), threads_);
  for (auto row = std::size_t{0}; !weights.bias.empty() && row < out.size(); ++row) {
    std::ranges::transform(out[row], weights.bias.numbers(), out[row].begin(), std::plus{});
  }
}

/// Normalises each run of `each` numbers of every row.
void model::normalize_all(rows& numbers, const tensor& weights, std::int64_t each) const {
  const auto added = config_.kind == architecture::gemma_3 ? 1.0f : 0.0f;
  for (auto row = std::size_t{0}; row < numbers.size(); ++row) {
    const auto all = numbers[row];
    for (auto i = std::size_t{0}; i < all.size(); i += static_cast<std::size_t>(each)) {
      normalize(all.subspan(i, static_cast<std::size_t>(each)), weights.numbers(), config_.norm_epsilon, added);
    }
  }
}

/// Turns pairs of numbers of every head, half of the turned numbers apart, by their token's position.
void model::turn(rows& heads, const step_tokens& step, const rotation& by) {
  const auto half = by.frequencies.size();
  angles_.resize(2 * half);
  for (auto row = std::size_t{0}; row < heads.size(); ++row) {
    const auto& frequencies = !step.is_long.empty() && step.is_long[row] ? by.of_long : by.frequencies;
    for (auto i = std::size_t{0}; i < half; ++i) {
      const auto angle = static_cast<float>(step.positions[row]) * frequencies[i];
      angles_[2 * i] = std::cos(angle) * by.scale;
      angles_[2 * i + 1] = std::sin(angle) * by.scale;
    }
    const auto all = heads[row];
    for (auto* head = all.data(); head != all.data() + all.size(); head += config_.head_dim) {
      for (auto i = std::size_t{0}; i < half; ++i) {
        const auto first = head[i];
        const auto second = head[i + half];
        head[i] = first * angles_[2 * i] - second * angles_[2 * i + 1];
        head[i + half] = second * angles_[2 * i] + first * angles_[2 * i + 1];
      }
    }
  }
}

void model::attend(std::size_t index, const step_tokens& step, memory& of_rows) {
  const auto& weights = layers_[index].attention;
  const auto of_queries = std::int64_t{config_.num_heads} * config_.head_dim;
  const auto of_keys = std::int64_t{config_.num_kv_heads} * config_.head_dim;
  apply(weights.queries, normed_, of_queries, queries_);
  apply(weights.keys, normed_, of_keys, keys_);
  apply(weights.values, normed_, of_keys, values_);
  if (!weights.query_norm.empty()) {
    normalize_all(queries_, weights.query_norm, config_.head_dim);
    normalize_all(keys_, weights.key_norm, config_.head_dim);
  }
  const auto& by = config_.layers[index] == layer_kind::full ? config_.full_rotation : config_.window_rotation;
  turn(queries_, step, by);
  turn(keys_, step, by);
  attended_.resize(queries_.size(), of_queries);
  of_rows.attend(index, queries_.data(), keys_.data(), values_.data(), attended_.data());
  apply(weights.output, attended_, config_.hidden, added_);
}

void model::advance_states(std::size_t index, const step_tokens& step, memory& of_rows) {
  const auto& weights = layers_[index].state;
  const auto& sizes = config_.state;
  apply(weights.in, normed_, std::int64_t{sizes.inner()} + sizes.channels() + sizes.num_heads, queries_);
  attended_.resize(queries_.size(), sizes.inner());
  for (auto row = std::size_t{0}; row < step.num_rows(); ++row) {
    auto* const state = of_rows.state(index, row);
    const auto first = static_cast<std::size_t>(step.starts[row]);
    if (step.positions[first] == 0) {
      std::fill_n(state, sizes.numbers(), 0.0f);
    }
    for (auto token = first; token < static_cast<std::size_t>(step.starts[row + 1]); ++token) {
      advance(weights, queries_[token], state, attended_[token]);
    }
  }
  apply(weights.out, attended_, config_.hidden, added_);
}

/// One token through Mamba-2's layer (https://arxiv.org/abs/2405.21060, section 7): a convolution over the last tokens,
/// then, for each head, `state = state * exp(step * -exp(decay)) + step * x * B` and `y = state * C + skip * x`.
void model::advance(const state_weights& weights, std::span<const float> projected, float* state,
                    std::span<float> out) {
  const auto& sizes = config_.state;
  const auto size = [](std::int32_t number) { return static_cast<std::size_t>(number); };
  const auto gate = projected.first(size(sizes.inner()));
  const auto inputs = projected.subspan(gate.size(), size(sizes.channels()));
  const auto steps = projected.last(size(sizes.num_heads));
  const auto kernel = size(sizes.kernel);

  mixed_.resize(inputs.size());
  for (auto channel = std::size_t{0}; channel < inputs.size(); ++channel) {
    auto* const before = state + channel * (kernel - 1);
    const auto* const taps = weights.convolution.data() + channel * kernel;
    auto sum = weights.convolution_bias.empty() ? 0.0f : weights.convolution_bias.numbers()[channel];
    for (auto i = std::size_t{0}; i + 1 < kernel; ++i) {
      sum += before[i] * taps[i];
    }
    mixed_[channel] = silu(sum + inputs[channel] * taps[kernel - 1]);
    std::shift_left(before, before + kernel - 1, 1);
    before[kernel - 2] = inputs[channel];
  }

  auto* sums = state + inputs.size() * (kernel - 1);  // [head][head_dim][state_dim]
  const auto* const x = mixed_.data();
  const auto* const b = x + sizes.inner();
  const auto* const c = b + sizes.num_groups * sizes.state_dim;
  for (auto head = 0; head < sizes.num_heads; ++head) {
    const auto at = size(head);
    const auto step = softplus(steps[at] + weights.step_bias.numbers()[at]);
    const auto kept = std::exp(step * -std::exp(weights.decay.numbers()[at]));
    const auto shared = head / (sizes.num_heads / sizes.num_groups) * sizes.state_dim;
    for (auto i = 0; i < sizes.head_dim; ++i, sums += sizes.state_dim) {
      const auto input = x[head * sizes.head_dim + i];
      auto sum = 0.0f;
      for (auto n = 0; n < sizes.state_dim; ++n) {
        sums[n] = sums[n] * kept + step * input * b[shared + n];
        sum += sums[n] * c[shared + n];
      }
      out[size(head * sizes.head_dim + i)] = sum + weights.skip.numbers()[at] * input;
    }
  }
  std::ranges::transform(out, gate, out.begin(), [](float y, float z) { return y * silu(z); });
  const auto each = out.size() / size(sizes.num_groups);
  for (auto i = std::size_t{0}; i < out.size(); i += each) {
    normalize(out.subspan(i, each), weights.norm.numbers().subspan(i, each), config_.norm_epsilon, 0);
  }
}

void model::feed(const layer& weights) {
  apply(weights.gate, normed_, config_.intermediate, gate_);
  apply(weights.up, normed_, config_.intermediate, up_);
  const auto count = gate_.size() * static_cast<std::size_t>(config_.intermediate);
  const auto activate = config_.gelu ? &gelu : &silu;
  std::transform(gate_.data(), gate_.data() + count, up_.data(), gate_.data(),
                 [&](float gate, float up) { return activate(gate) * up; });
  apply(weights.down, gate_, config_.hidden, added_);
}

std::span<const float> model::run(const step_tokens& step, memory& of_rows) {
  const auto hidden = std::int64_t{config_.hidden};
  const auto count = step.tokens.size();
  hidden_.resize(count, hidden);
  for (auto i = std::size_t{0}; i < count; ++i) {
    const auto* const from = embeddings_.data() + static_cast<std::int64_t>(step.tokens[i]) * hidden;
    std::transform(from, from + hidden, hidden_[i].begin(), [&](float x) { return x * config_.embedding_scale; });
  }
  const auto add = [&](const tensor& norm) {
    if (!norm.empty()) {
      normalize_all(added_, norm, hidden);
    }
    std::transform(added_.data(), added_.data() + count * static_cast<std::size_t>(hidden), hidden_.data(),
                   hidden_.data(), std::plus{});
  };
  for (auto i = std::size_t{0}; i < layers_.size(); ++i) {
    const auto& weights = layers_[i];
    normed_ = hidden_;
    normalize_all(normed_, weights.norm_before, hidden);
    if (config_.layers[i] == layer_kind::state) {
      advance_states(i, step, of_rows);
    } else {
      attend(i, step, of_rows);
    }
    add(weights.norm_after);
    normed_ = hidden_;
    normalize_all(normed_, weights.norm_before_feed, hidden);
    feed(weights);
    add(weights.norm_after_feed);
  }
  wanted_.resize(step.wanted.size(), hidden);
  for (auto i = std::size_t{0}; i < step.wanted.size(); ++i) {
    std::ranges::copy(hidden_[static_cast<std::size_t>(step.wanted[i])], wanted_[i].begin());
  }
  normalize_all(wanted_, last_norm_, hidden);
  logits_.resize(step.wanted.size(), config_.vocabulary);
  multiply(wanted_.data(), wanted_.size(), hidden, head_.empty() ? embeddings_.data() : head_.data(),
           config_.vocabulary, logits_.data(), threads_);
  return {logits_.data(), step.wanted.size() * static_cast<std::size_t>(config_.vocabulary)};
}

}  // namespace llama
