#include "plain_generation.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace llama::test {

void plain_memory::attend(std::size_t layer, const float* queries, const float* keys, const float* values,
                          float* output) {
  const auto dim = static_cast<std::size_t>(config_->head_dim);
  const auto heads = static_cast<std::size_t>(config_->num_heads);
  const auto kv_heads = static_cast<std::size_t>(config_->num_kv_heads);
  auto& of_layer = layers_[layer];
  const auto width = kv_heads * dim;
  of_layer.keys.insert(of_layer.keys.end(), keys, keys + num_new_ * width);
  of_layer.values.insert(of_layer.values.end(), values, values + num_new_ * width);
  const auto length = of_layer.keys.size() / width;
  auto scores = std::vector<double>(length);
  for (auto token = std::size_t{0}; token < num_new_; ++token) {
    const auto end = length - num_new_ + token + 1;
    const auto window = static_cast<std::size_t>(config_->window);
    const auto begin = config_->layers[layer] == layer_kind::window && end > window ? end - window : 0;
    for (auto head = std::size_t{0}; head < heads; ++head) {
      const auto* const query = queries + (token * heads + head) * dim;
      const auto from = head / (heads / kv_heads) * dim;
      auto largest = -std::numeric_limits<double>::infinity();
      for (auto i = begin; i < end; ++i) {
        auto score = 0.0;
        for (auto n = std::size_t{0}; n < dim; ++n) {
          score += static_cast<double>(query[n]) * static_cast<double>(of_layer.keys[i * width + from + n]);
        }
        scores[i] = score * static_cast<double>(config_->attention_scale);
        largest = std::max(largest, scores[i]);
      }
      auto sums = std::vector<double>(dim);
      auto total = 0.0;
      for (auto i = begin; i < end; ++i) {
        const auto weight = std::exp(scores[i] - largest);
        total += weight;
        for (auto n = std::size_t{0}; n < dim; ++n) {
          sums[n] += weight * static_cast<double>(of_layer.values[i * width + from + n]);
        }
      }
      std::ranges::transform(sums, output + (token * heads + head) * dim,
                             [&](double sum) { return static_cast<float>(sum / total); });
    }
  }
}

float* plain_memory::state(std::size_t layer, std::size_t /*row*/) {
  auto& state = layers_[layer].state;
  state.resize(static_cast<std::size_t>(config_->state.numbers()));
  return state.data();
}

std::vector<pagedkv::token> generate_plainly(model& with, const std::vector<pagedkv::token>& prompt,
                                             std::size_t count) {
  auto kept = plain_memory(with.config());
  auto all = prompt;
  auto next = prompt;
  auto position = std::int32_t{0};
  auto tokens = std::vector<pagedkv::token>{};
  while (tokens.size() < count) {
    const bool is_long = with.config().is_long(std::ssize(all));
    if (is_long && !with.config().is_long(std::ssize(all) - 1)) {
      kept = plain_memory(with.config());
      next = all;
      position = 0;
    }
    auto step = step_tokens{};
    step.tokens = next;
    step.is_long.assign(next.size(), is_long);
    for (auto i = std::size_t{0}; i < next.size(); ++i) {
      step.positions.push_back(position++);
    }
    step.starts.push_back(static_cast<std::int32_t>(next.size()));
    step.wanted = {static_cast<std::int32_t>(next.size()) - 1};
    kept.expect(next.size());
    const auto logits = with.run(step, kept);
    tokens.push_back(static_cast<pagedkv::token>(std::ranges::max_element(logits) - logits.begin()));
    next = {tokens.back()};
    all.push_back(tokens.back());
  }
  return tokens;
}

}  // namespace llama::test
