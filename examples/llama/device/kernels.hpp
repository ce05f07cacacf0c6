#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/kernels/platform.hpp>
#include <pagedkv/kernels/row.hpp>

#include <cmath>
#include <cstdint>
#include <limits>

// The model's own kernels. Each waits for the kernel before it only when it reads what that one wrote.

namespace llama::device {

namespace kernels = pagedkv::kernels;

inline constexpr auto workgroup_size = 256;
inline constexpr auto row_workgroup_size = 1024;  // the largest, where a workgroup has a row of hidden numbers
inline constexpr auto most_waves = 32;            // of a workgroup

template <class Element>
using storage_of = typename Element::storage;

PAGEDKV_DEVICE inline std::int32_t lane_of_workgroup() { return static_cast<std::int32_t>(kernels::local_index().x); }
PAGEDKV_DEVICE inline std::int32_t index_of_workgroup() {
  return static_cast<std::int32_t>(kernels::workgroup_index().x);
}

/// The sum over a wave, on each of its lanes.
PAGEDKV_DEVICE inline float sum_of_wave(float value) {
  for (auto mask = kernels::wave_size() / 2; mask > 0; mask /= 2) {
    value += kernels::shuffle_xor(value, mask, kernels::wave_size());
  }
  return value;
}

/// The sum over a workgroup, on each of its lanes.
PAGEDKV_DEVICE inline float sum_of_workgroup(float value) {
  PAGEDKV_SHARED kernels::shared_array<float, most_waves> sums;
  const auto wave = lane_of_workgroup() / kernels::wave_size();
  value = sum_of_wave(value);
  if (lane_of_workgroup() % kernels::wave_size() == 0) {
    sums[static_cast<std::size_t>(wave)] = value;
  }
  kernels::barrier();
  const auto num_waves = static_cast<std::int32_t>(kernels::workgroup_extent().x) / kernels::wave_size();
  auto sum = 0.0F;
  for (auto i = std::int32_t{0}; i < num_waves; ++i) {
    sum += sums[static_cast<std::size_t>(i)];
  }
  kernels::barrier();
  return sum;
}

PAGEDKV_DEVICE inline float silu(float x) { return x / (1.0F + std::exp(-x)); }

/// GELU by its approximation with a hyperbolic tangent.
PAGEDKV_DEVICE inline float gelu(float x) {
  return 0.5F * x * (1.0F + std::tanh(0.7978845608028654F * (x + 0.044715F * x * x * x)));
}

/// A number behind its gate: `gelu(gate) * number`, or with SiLU.
PAGEDKV_DEVICE inline float gated(float gate, float number, bool is_gelu) {
  return (is_gelu ? gelu(gate) : silu(gate)) * number;
}

/// The numbers of each token's embedding times `scale`, a workgroup for each token.
template <class Element>
PAGEDKV_KERNEL void look_up(const storage_of<Element>* embeddings, const pagedkv::token* tokens, std::int32_t width,
                            float scale, float* hidden) {
  kernels::let_next_kernel_start();
  kernels::wait_for_previous_kernel();
  const auto row = std::int64_t{index_of_workgroup()};
  const auto* const from = embeddings + kernels::load(tokens + row) * std::int64_t{width};
  for (auto i = lane_of_workgroup(); i < width; i += workgroup_size) {
    kernels::store(hidden + row * width + i, Element::decode(kernels::load(from + i), 1) * scale);
  }
}

/// The inverse root of the mean of a row's squares, computed by a workgroup, on each of its lanes.
PAGEDKV_DEVICE inline float norm_factor(const float* row, float epsilon, std::int32_t width) {
  const auto stride = 4 * static_cast<std::int32_t>(kernels::workgroup_extent().x);
  auto sum = 0.0F;
  for (auto i = 4 * lane_of_workgroup(); i < width; i += stride) {
    for (const auto number : kernels::load_vector<4>(row + i).values) {
      sum += number * number;
    }
  }
  return 1.0F / std::sqrt(sum_of_workgroup(sum) / static_cast<float>(width) + epsilon);
}

/// Root-mean-square normalisation, a workgroup for each result: of row `rows[i]`, or without `rows` of row i. `width`
/// is a multiple of four.
template <class Element>
PAGEDKV_KERNEL void normalize_rows(const float* hidden, const std::int32_t* rows, const float* weights, float epsilon,
                                   std::int32_t width, storage_of<Element>* normed) {
  kernels::let_next_kernel_start();
  kernels::wait_for_previous_kernel();
  const auto result = std::int64_t{index_of_workgroup()};
  const auto* const row = hidden + (rows == nullptr ? result : std::int64_t{kernels::load(rows + result)}) * width;
  const auto stride = 4 * static_cast<std::int32_t>(kernels::workgroup_extent().x);
  const auto factor = norm_factor(row, epsilon, width);
  for (auto i = 4 * lane_of_workgroup(); i < width; i += stride) {
    auto numbers = kernels::load_vector<4>(row + i);
    const auto weight = kernels::load_vector<4>(weights + i);
    for (auto n = 0; n < 4; ++n) {
      numbers.values[n] *= factor * weight.values[n];
    }
    kernels::store_vector(normed + result * width + i, kernels::encode<Element, 4>(numbers, 1));
  }
}

/// Adds root-mean-square normalised rows to hidden rows, a workgroup for each. `width` is a multiple of four.
template <class Element>
PAGEDKV_KERNEL void add_normalized_rows(const float* rows, const float* weights, float epsilon, std::int32_t width,
                                        float* hidden) {
  kernels::let_next_kernel_start();
  kernels::wait_for_previous_kernel();
  const auto first = std::int64_t{index_of_workgroup()} * width;
  const auto stride = 4 * static_cast<std::int32_t>(kernels::workgroup_extent().x);
  const auto factor = norm_factor(rows + first, epsilon, width);
  for (auto i = 4 * lane_of_workgroup(); i < width; i += stride) {
    const auto numbers = kernels::load_vector<4>(rows + first + i);
    const auto weight = kernels::load_vector<4>(weights + i);
    auto sums = kernels::load_vector<4>(hidden + first + i);
    for (auto n = 0; n < 4; ++n) {
      sums.values[n] += numbers.values[n] * factor * weight.values[n];
    }
    kernels::store_vector(hidden + first + i, sums);
  }
}

/// Heads of queries, and behind them those of keys, in the rows of a product.
struct projected_heads {
  std::int64_t row_stride = 0;
  std::int32_t num_query_heads = 0;
  std::int32_t num_heads = 0;  // of queries and keys together
  std::int32_t head_dim = 0;
};

/// Normalises every head in place, a workgroup for each: x counts rows, y heads.
template <class Element>
PAGEDKV_KERNEL void normalize_heads(storage_of<Element>* numbers, projected_heads heads, const float* query_weights,
                                    const float* key_weights, float epsilon) {
  kernels::let_next_kernel_start();
  kernels::wait_for_previous_kernel();
  const auto head = static_cast<std::int32_t>(kernels::workgroup_index().y);
  auto* const row = numbers + index_of_workgroup() * heads.row_stride + std::int64_t{head} * heads.head_dim;
  const auto* const weights = head < heads.num_query_heads ? query_weights : key_weights;
  const auto size = static_cast<std::int32_t>(kernels::workgroup_extent().x);
  auto sum = 0.0F;
  for (auto i = lane_of_workgroup(); i < heads.head_dim; i += size) {
    const auto number = Element::decode(kernels::load(row + i), 1);
    sum += number * number;
  }
  const auto factor = 1.0F / std::sqrt(sum_of_workgroup(sum) / static_cast<float>(heads.head_dim) + epsilon);
  for (auto i = lane_of_workgroup(); i < heads.head_dim; i += size) {
    const auto number = Element::decode(kernels::load(row + i), 1) * factor * kernels::load(weights + i);
    kernels::store(row + i, Element::encode(number, 1));
  }
}

/// Of rows with `width` numbers of the gate and `width` others: each of these behind its gate. y counts rows.
template <class Element>
PAGEDKV_KERNEL void apply_gates(const storage_of<Element>* gates, std::int32_t width, bool is_gelu,
                                storage_of<Element>* result) {
  constexpr auto n = kernels::numbers_in_vector<storage_of<Element>>;
  kernels::let_next_kernel_start();
  kernels::wait_for_previous_kernel();
  const auto i = (index_of_workgroup() * workgroup_size + lane_of_workgroup()) * n;
  const auto row = std::int64_t{kernels::workgroup_index().y};
  if (i < width) {
    const auto* const from = gates + 2 * row * width + i;
    auto gate = kernels::decode<Element, n>(kernels::load_vector<n>(from), 1);
    const auto up = kernels::decode<Element, n>(kernels::load_vector<n>(from + width), 1);
    for (auto each = 0; each < n; ++each) {
      gate.values[each] = gated(gate.values[each], up.values[each], is_gelu);
    }
    kernels::store_vector(result + row * width + i, kernels::encode<Element, n>(gate, 1));
  }
}

/// The largest logit of some tokens; of equal ones that of the first. Without a number among them, token 0.
struct best_token {
  float logit = -std::numeric_limits<float>::infinity();
  pagedkv::token token = 0;

  [[nodiscard]] PAGEDKV_DEVICE bool beats(const best_token& other) const {
    return logit > other.logit || (logit == other.logit && token < other.token);
  }
};

/// The best over a workgroup, on its first lane.
PAGEDKV_DEVICE inline best_token best_of_workgroup(best_token best) {
  PAGEDKV_SHARED kernels::shared_array<float, most_waves> logits;
  PAGEDKV_SHARED kernels::shared_array<pagedkv::token, most_waves> tokens;
  for (auto mask = kernels::wave_size() / 2; mask > 0; mask /= 2) {
    const auto other = best_token{kernels::shuffle_xor(best.logit, mask, kernels::wave_size()),
                                  kernels::shuffle_xor(best.token, mask, kernels::wave_size())};
    best = other.beats(best) ? other : best;
  }
  const auto wave = static_cast<std::size_t>(lane_of_workgroup() / kernels::wave_size());
  if (lane_of_workgroup() % kernels::wave_size() == 0) {
    logits[wave] = best.logit;
    tokens[wave] = best.token;
  }
  kernels::barrier();
  for (auto i = std::size_t{0}; lane_of_workgroup() == 0 && i < most_waves; ++i) {
    if (i < kernels::workgroup_extent().x / static_cast<std::uint32_t>(kernels::wave_size())) {
      const auto other = best_token{logits[i], tokens[i]};
      best = other.beats(best) ? other : best;
    }
  }
  return best;
}

/// Workgroups that look for a row's best token at once.
inline constexpr auto parts_of_row = std::int32_t{32};

/// The best token of each part of a row of a model's logits; x counts parts, y rows.
template <class Element>
PAGEDKV_KERNEL void find_best_of_parts(const float* logits, std::int32_t width, best_token* parts) {
  kernels::let_next_kernel_start();
  kernels::wait_for_previous_kernel();
  const auto row = std::int64_t{kernels::workgroup_index().y};
  auto best = best_token{};
  for (auto i = index_of_workgroup() * workgroup_size + lane_of_workgroup(); i < width;
       i += parts_of_row * workgroup_size) {
    const auto other = best_token{kernels::load(logits + row * width + i), i};
    best = other.beats(best) ? other : best;
  }
  best = best_of_workgroup(best);
  if (lane_of_workgroup() == 0) {
    kernels::store(&parts[row * parts_of_row + index_of_workgroup()].logit, best.logit);
    kernels::store(&parts[row * parts_of_row + index_of_workgroup()].token, best.token);
  }
}

/// The best token of each row, a workgroup for each.
template <class Element>
PAGEDKV_KERNEL void find_best(const best_token* parts, pagedkv::token* best_of_rows) {
  kernels::let_next_kernel_start();
  kernels::wait_for_previous_kernel();
  auto best = best_token{};
  if (lane_of_workgroup() < parts_of_row) {
    const auto* const part = parts + std::int64_t{index_of_workgroup()} * parts_of_row + lane_of_workgroup();
    best = {kernels::load(&part->logit), kernels::load(&part->token)};
  }
  best = best_of_workgroup(best);
  if (lane_of_workgroup() == 0) {
    kernels::store(best_of_rows + index_of_workgroup(), best.token);
  }
}

}  // namespace llama::device
