#pragma once

#include "draw_number.hpp"
#include "uninstrumented.hpp"

#include <pagedkv/attention/attention.hpp>
#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/element/float8.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace pagedkv::test {

/// The inputs of attention for one sequence, in float64. Its queries belong to its last tokens.
struct attention_problem {
  std::int64_t num_tokens = 0;
  std::int64_t num_queries = 1;
  std::int64_t num_heads = 1;
  std::int64_t num_kv_heads = 1;
  std::int64_t key_dim = 1;
  std::int64_t value_dim = 1;
  std::vector<double> keys;     // [token][KV head][key_dim]
  std::vector<double> values;   // [token][KV head][value_dim]
  std::vector<double> queries;  // [query][head][key_dim]
  std::vector<std::uint32_t> tree_masks = {};  // [query]; empty: no tree
  std::vector<std::vector<std::int64_t>> listed = {};  // [KV head]: the tokens that are read; empty: all
};

struct attention_answer {
  std::vector<double> output;       // [query][head][value_dim]
  std::vector<double> log_sum_exp;  // [query][head]
};

/// The numbers of a packed token, by the offsets that FlashMLA publishes.
[[nodiscard]] inline std::vector<double> read_packed_token(const std::byte* bytes) {
  auto numbers = std::vector<double>(576);
  for (auto i = std::size_t{0}; i < 512; ++i) {
    auto scale = 0.0f;
    std::memcpy(&scale, bytes + 512 + i / 128 * 4, sizeof(scale));
    numbers[i] = double{float8_e4m3::decode(static_cast<std::uint8_t>(bytes[i]), 1.0f)} * double{scale};
  }
  for (auto i = std::size_t{0}; i < 64; ++i) {
    auto stored = std::uint16_t{0};
    std::memcpy(&stored, bytes + 528 + i * 2, sizeof(stored));
    numbers[512 + i] = double{bfloat16::decode(stored, 1.0f)};
  }
  return numbers;
}

/// Reads keys and values of a sequence out of blocks; those of `no_block` are NaN.
template <element Element>
void read_blocks(attention_problem& problem, const block_storage_view& view, std::int32_t layer,
                 std::span<const block_id> blocks, std::int64_t num_tokens) {
  using storage = typename Element::storage;
  problem.num_tokens = num_tokens;
  problem.num_kv_heads = view.num_kv_heads;
  problem.key_dim = view.head_dim;
  problem.value_dim = view.dim_of_values();
  const auto rows = static_cast<std::size_t>(num_tokens * view.num_kv_heads);
  problem.keys.assign(rows * static_cast<std::size_t>(problem.key_dim), std::nan(""));
  problem.values.assign(rows * static_cast<std::size_t>(problem.value_dim), std::nan(""));
  const auto read_row = [](double* to, std::int64_t dim, const storage* row, const float* scale) {
    for (auto i = std::int64_t{0}; i < dim; ++i) {
      to[i] = double{Element::decode(row[i], 1.0f)} * (scale == nullptr ? 1.0 : double{*scale});
    }
  };
  for (auto t = std::int64_t{0}; t < num_tokens; ++t) {
    const auto block = static_cast<std::int64_t>(blocks[static_cast<std::size_t>(t / view.block_size)]);
    const auto offset = static_cast<std::int32_t>(t % view.block_size);
    if (packs_tokens<Element> && block >= 0) {
      const auto numbers = read_packed_token(view.block(layer, block) + std::int64_t{offset} * 656);
      std::copy_n(numbers.data(), problem.key_dim, problem.keys.data() + t * problem.key_dim);
      std::copy_n(numbers.data(), problem.value_dim, problem.values.data() + t * problem.value_dim);
      continue;
    }
    for (auto head = 0; block >= 0 && head < view.num_kv_heads; ++head) {
      const float* const key_scale =
          Element::scaled ? view.key_scale(layer, block, offset, head) : view.static_key_scale(layer, head);
      const float* const value_scale =
          Element::scaled ? view.value_scale(layer, block, offset, head) : view.static_value_scale(layer, head);
      const auto row = t * view.num_kv_heads + head;
      read_row(problem.keys.data() + row * problem.key_dim, problem.key_dim,
               view.template key<storage>(layer, block, offset, head), key_scale);
      read_row(problem.values.data() + row * problem.value_dim, problem.value_dim,
               view.template value<storage>(layer, block, offset, head), value_scale);
    }
  }
}

/// The score of one query and one key, as `attention_options` describes it.
[[nodiscard]] PAGEDKV_UNINSTRUMENTED inline double reference_score(const attention_problem& problem,
                                                                   const attention_options& options, std::int64_t query,
                                                                   std::int64_t head, std::int64_t token) {
  const auto kv_head = head / (problem.num_heads / problem.num_kv_heads);
  const auto* const q = problem.queries.data() + (query * problem.num_heads + head) * problem.key_dim;
  const auto* const k = problem.keys.data() + (token * problem.num_kv_heads + kv_head) * problem.key_dim;
  auto score = 0.0;
  for (auto i = std::int64_t{0}; i < problem.key_dim; ++i) {
    score += q[i] * k[i];
  }
  score *= options.scale == 0 ? 1 / std::sqrt(static_cast<double>(problem.key_dim)) : double{options.scale};
  if (options.soft_cap != 0) {
    score = double{options.soft_cap} * std::tanh(score / double{options.soft_cap});
  }
  if (options.alibi_slopes != nullptr) {
    const auto position = problem.num_tokens - problem.num_queries + query;
    score += double{options.alibi_slopes[head]} * static_cast<double>(token - position);
  }
  return score;
}

/// Whether a tree mask hides a token from a query.
[[nodiscard]] inline bool hidden_by_tree(const attention_problem& problem, std::int64_t query, std::int64_t token) {
  const auto in_tree = token - (problem.num_tokens - problem.num_queries);
  return !problem.tree_masks.empty() && in_tree >= 0 && in_tree != query &&
         (problem.tree_masks[static_cast<std::size_t>(query)] >> in_tree & 1U) == 0;
}

/// The tokens from `begin` up to `end` that a query sees in a KV head, as often as they are listed.
[[nodiscard]] inline std::vector<std::int64_t> seen_tokens(const attention_problem& problem, std::int64_t query,
                                                           std::int64_t kv_head, std::int64_t begin, std::int64_t end) {
  auto tokens = std::vector<std::int64_t>{};
  const auto add = [&](std::int64_t token) {
    if (token >= begin && token < end && !hidden_by_tree(problem, query, token)) {
      tokens.push_back(token);
    }
  };
  if (problem.listed.empty()) {
    for (auto token = begin; token < end; ++token) {
      add(token);
    }
  } else {
    std::ranges::for_each(problem.listed[static_cast<std::size_t>(kv_head)], add);
  }
  return tokens;
}

/// `count` entries in any order, of which some are negative and some may be equal; none where the row has no block.
template <class Random>
[[nodiscard]] std::vector<std::int32_t> random_entries(std::int32_t num_blocks, std::int32_t count, Random& random) {
  auto entries = std::vector<std::int32_t>{};
  auto entry_of = std::uniform_int_distribution<std::int32_t>(num_blocks > 3 ? -num_blocks / 4 : -1, num_blocks - 1);
  for (auto i = 0; i < count; ++i) {
    entries.push_back(num_blocks == 0 ? -1 : entry_of(random));
  }
  return entries;
}

/// Sets the blocks of a row that no entry names to `no_block`: nothing may read them.
inline void remove_unlisted(std::span<block_id> blocks, std::span<const std::int32_t> entries) {
  for (auto i = std::size_t{0}; i < blocks.size(); ++i) {
    if (std::ranges::find(entries, static_cast<std::int32_t>(i)) == entries.end()) {
      blocks[i] = no_block;
    }
  }
}

/// The tokens of the blocks that entries name.
[[nodiscard]] inline std::vector<std::int64_t> tokens_of_entries(std::span<const std::int32_t> entries,
                                                                 std::int32_t block_size) {
  auto tokens = std::vector<std::int64_t>{};
  for (const auto entry : entries) {
    for (auto offset = 0; entry >= 0 && offset < block_size; ++offset) {
      tokens.push_back(std::int64_t{entry} * block_size + offset);
    }
  }
  return tokens;
}

/// Attention in float64, from its definition. A query that sees no token gives zeros and minus infinity.
[[nodiscard]] PAGEDKV_UNINSTRUMENTED inline attention_answer reference_attention(const attention_problem& problem,
                                                                                 const attention_options& options) {
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  const auto rows = static_cast<std::size_t>(problem.num_queries * problem.num_heads);
  auto answer = attention_answer{std::vector<double>(rows * static_cast<std::size_t>(problem.value_dim)),
                                 std::vector<double>(rows, -infinity)};
  for (auto row = std::int64_t{0}; row < problem.num_queries * problem.num_heads; ++row) {
    const auto query = row / problem.num_heads;
    const auto head = row % problem.num_heads;
    const auto end = problem.num_tokens - problem.num_queries + query + 1;
    const auto begin = options.window == 0 ? std::int64_t{0} : std::max<std::int64_t>(0, end - options.window);
    if (end <= begin) {
      continue;
    }
    const auto kv_head = head / (problem.num_heads / problem.num_kv_heads);
    const auto tokens = seen_tokens(problem, query, kv_head, begin, end);
    if (tokens.empty()) {
      continue;
    }
    auto scores = std::vector<double>(tokens.size());
    auto highest = options.sinks == nullptr ? -infinity : double{options.sinks[head]};
    for (auto n = std::size_t{0}; n < tokens.size(); ++n) {
      scores[n] = reference_score(problem, options, query, head, tokens[n]);
      highest = std::max(highest, scores[n]);
    }
    auto sum = options.sinks == nullptr ? 0.0 : std::exp(double{options.sinks[head]} - highest);
    auto* const output = answer.output.data() + row * problem.value_dim;
    for (auto n = std::size_t{0}; n < tokens.size(); ++n) {
      const auto weight = std::exp(scores[n] - highest);
      const auto* const value =
          problem.values.data() + (tokens[n] * problem.num_kv_heads + kv_head) * problem.value_dim;
      for (auto i = std::int64_t{0}; i < problem.value_dim; ++i) {
        output[i] += weight * value[i];
      }
      sum += weight;
    }
    std::for_each(output, output + problem.value_dim, [&](double& number) { number /= sum; });
    answer.log_sum_exp[static_cast<std::size_t>(row)] = highest + std::log(sum);
  }
  return answer;
}

/// The largest difference between a row of results and of the reference, as a share of the reference's largest
/// magnitude in that row. NaN if a result is.
template <class Decode>
[[nodiscard]] double relative_error(std::span<const double> reference, Decode&& result_at) {
  auto largest = std::numeric_limits<double>::min();
  auto difference = 0.0;
  for (auto i = std::size_t{0}; i < reference.size(); ++i) {
    largest = std::max(largest, std::abs(reference[i]));
    const auto d = std::abs(reference[i] - result_at(i));
    difference = std::isnan(difference) || d <= difference ? difference : d;
  }
  return difference / largest;
}

/// The permitted error of attention over an element.
template <element Element>
inline constexpr double attention_tolerance = Element::scaled || has_static_scales<Element>
                                                  ? 1e-2
                                                  : (Element::name == "float32"
                                                         ? 1e-5
                                                         : (Element::name == "float16" ? 2e-3 : 1.6e-2));

}  // namespace pagedkv::test
