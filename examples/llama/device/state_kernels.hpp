#pragma once

#include "../config.hpp"
#include "kernels.hpp"

#include <cmath>
#include <cstdint>

// Kernels of Mamba-2's layers: a convolution over the last tokens, the sums of a recurrent state, a gate.

namespace llama::device {

/// Numbers that belong to one result in a state; a wave has them.
inline constexpr auto largest_state_dim = std::int32_t{256};
inline constexpr auto smallest_wave = std::int32_t{32};

PAGEDKV_DEVICE inline float softplus(float x) { return x > 20.0F ? x : std::log1p(std::exp(x)); }

/// The rows of a step in a layer with a state, in float32.
struct state_rows {
  state_sizes sizes;
  const std::int32_t* starts;     // [rows + 1]
  const std::int64_t* positions;  // [token]
  float* const* states;           // [row]
  const float* projected;         // [token][inner + channels + heads]: gates, what is convolved, steps
  float* convolved;               // [token][channels]: x, B and C
  float* results;                 // [token][inner]

  [[nodiscard]] PAGEDKV_HOST_DEVICE std::int64_t projected_width() const {
    return std::int64_t{sizes.num_heads} * sizes.head_dim + num_channels() + sizes.num_heads;
  }
  [[nodiscard]] PAGEDKV_HOST_DEVICE std::int32_t num_inner() const { return sizes.num_heads * sizes.head_dim; }
  [[nodiscard]] PAGEDKV_HOST_DEVICE std::int32_t num_channels() const {
    return num_inner() + 2 * sizes.num_groups * sizes.state_dim;
  }
  /// Whether the row's first token has none before it, so that its state means nothing yet.
  [[nodiscard]] PAGEDKV_DEVICE bool begins(std::int32_t first) const { return kernels::load(positions + first) == 0; }
};

struct convolution_weights {
  const float* taps;  // [channel][kernel]
  const float* bias;  // [channel], or null
};

/// Convolves the channels of each of a row's tokens, a lane for each channel; x counts workgroups of channels, y rows.
/// Keeps the row's last inputs in its state.
template <class Element>
PAGEDKV_KERNEL void convolve(state_rows of, convolution_weights weights) {
  kernels::let_next_kernel_start();
  kernels::wait_for_previous_kernel();
  const auto channel = index_of_workgroup() * workgroup_size + lane_of_workgroup();
  const auto row = static_cast<std::int32_t>(kernels::workgroup_index().y);
  if (channel >= of.num_channels()) {
    return;
  }
  const auto num_before = of.sizes.kernel - 1;
  const auto first = kernels::load(of.starts + row);
  const auto count = kernels::load(of.starts + row + 1) - first;
  const bool begins = of.begins(first);
  auto* const before = kernels::load(of.states + row) + std::int64_t{channel} * num_before;
  const auto* const inputs = of.projected + first * of.projected_width() + of.num_inner() + channel;
  const auto input = [&](std::int32_t token) {
    return token >= 0 ? kernels::load(inputs + token * of.projected_width())
                      : (begins ? 0.0F : kernels::load(before + num_before + token));
  };
  for (auto token = std::int32_t{0}; token < count; ++token) {
    auto sum = weights.bias == nullptr ? 0.0F : kernels::load(weights.bias + channel);
    for (auto i = std::int32_t{0}; i <= num_before; ++i) {
      sum += input(token - num_before + i) * kernels::load(weights.taps + std::int64_t{channel} * of.sizes.kernel + i);
    }
    kernels::store(of.convolved + std::int64_t{first + token} * of.num_channels() + channel, silu(sum));
  }
  for (auto i = std::int32_t{0}; i < num_before; ++i) {  // reads ahead of what it writes
    kernels::store(before + i, input(count - num_before + i));
  }
}

struct sum_weights {
  const float* step_bias;  // [head]
  const float* decay;      // [head]
  const float* skip;       // [head]
};

/// Advances the sums of a row by its tokens, a wave for each number of a token's result: `sums = sums * exp(step *
/// -exp(decay)) + step * x * B`, and the result is `sums * C + skip * x`. x counts workgroups of results, y rows.
template <class Element>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(workgroup_size) advance_sums(state_rows of, sum_weights weights) {
  constexpr auto most_of_lane = largest_state_dim / smallest_wave;
  kernels::let_next_kernel_start();
  kernels::wait_for_previous_kernel();
  const auto wave_size = kernels::wave_size();
  const auto lane = lane_of_workgroup() % wave_size;
  const auto result = index_of_workgroup() * (workgroup_size / wave_size) + lane_of_workgroup() / wave_size;
  const auto row = static_cast<std::int32_t>(kernels::workgroup_index().y);
  if (result >= of.num_inner()) {
    return;
  }
  const auto& sizes = of.sizes;
  const auto first = kernels::load(of.starts + row);
  const auto end = kernels::load(of.starts + row + 1);
  const bool begins = of.begins(first);
  const auto head = result / sizes.head_dim;
  const auto group = head / (sizes.num_heads / sizes.num_groups);
  auto* const state = kernels::load(of.states + row) + std::int64_t{of.num_channels()} * (sizes.kernel - 1) +
                      std::int64_t{result} * sizes.state_dim;
  float sums[most_of_lane];
  for (auto i = 0; i < most_of_lane; ++i) {
    const auto n = lane + i * wave_size;
    sums[i] = n < sizes.state_dim && !begins ? kernels::load(state + n) : 0.0F;
  }
  const auto step_bias = kernels::load(weights.step_bias + head);
  const auto rate = -std::exp(kernels::load(weights.decay + head));
  const auto skip = kernels::load(weights.skip + head);
  for (auto token = std::int64_t{first}; token < end; ++token) {
    const auto* const convolved = of.convolved + token * of.num_channels();
    const auto* const b = convolved + of.num_inner() + group * sizes.state_dim;
    const auto* const c = b + sizes.num_groups * sizes.state_dim;
    const auto* const steps = of.projected + token * of.projected_width() + of.num_inner() + of.num_channels();
    const auto step = softplus(kernels::load(steps + head) + step_bias);
    const auto kept = std::exp(step * rate);
    const auto x = kernels::load(convolved + result);
    auto sum = 0.0F;
    for (auto i = 0; i < most_of_lane; ++i) {
      if (const auto n = lane + i * wave_size; n < sizes.state_dim) {
        sums[i] = sums[i] * kept + step * x * kernels::load(b + n);
        sum += sums[i] * kernels::load(c + n);
      }
    }
    sum = sum_of_wave(sum);
    if (lane == 0) {
      kernels::store(of.results + token * of.num_inner() + result, sum + skip * x);
    }
  }
  for (auto i = 0; i < most_of_lane; ++i) {
    if (const auto n = lane + i * wave_size; n < sizes.state_dim) {
      kernels::store(state + n, sums[i]);
    }
  }
}

/// Root-mean-square normalisation of a token's results times their gates, a workgroup for each group of heads; x counts
/// tokens, y groups.
template <class Element>
PAGEDKV_KERNEL void gate_results(state_rows of, const float* weights, float epsilon, storage_of<Element>* to) {
  kernels::let_next_kernel_start();
  kernels::wait_for_previous_kernel();
  const auto token = std::int64_t{index_of_workgroup()};
  const auto each = of.num_inner() / of.sizes.num_groups;
  const auto first = static_cast<std::int32_t>(kernels::workgroup_index().y) * each;
  const auto number = [&](std::int32_t i) {
    const auto gate = kernels::load(of.projected + token * of.projected_width() + first + i);
    return kernels::load(of.results + token * of.num_inner() + first + i) * silu(gate);
  };
  auto sum = 0.0F;
  for (auto i = lane_of_workgroup(); i < each; i += workgroup_size) {
    sum += number(i) * number(i);
  }
  const auto factor = 1.0F / std::sqrt(sum_of_workgroup(sum) / static_cast<float>(each) + epsilon);
  for (auto i = lane_of_workgroup(); i < each; i += workgroup_size) {
    const auto normed = number(i) * factor * kernels::load(weights + first + i);
    kernels::store(to + token * of.num_inner() + first + i, Element::encode(normed, 1));
  }
}

}  // namespace llama::device
