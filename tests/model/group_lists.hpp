#pragma once

#include "../support/full_numbers.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/storage/sizing.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pagedkv::test::lists {

/// The groups of a preset, with few and small layers and short windows.
[[nodiscard]] inline group_list small(const group_list& preset) {
  auto groups = std::vector<group_config>(preset.begin(), preset.end());
  for (auto& group : groups) {
    group.num_layers = std::min(group.num_layers, group.kind == group_kind::full ? 1 : 3);
    group.num_kv_heads = std::min(group.num_kv_heads, 2);
    group.key_dim = std::min(group.key_dim, 4);
    group.value_dim = std::min(group.value_dim, 3);
    group.window = group.window == 0 ? 0 : 5 + group.window % 13;
    group.num_sinks = group.num_sinks == 0 ? 0 : 3;
    group.state_bytes = std::min<std::int64_t>(group.state_bytes, 48);
  }
  return group_list{std::span<const group_config>{groups}};
}

inline constexpr auto full = group_config{.num_layers = 2, .key_dim = 3, .value_dim = 3};
inline constexpr auto with_sinks = group_config{
    .kind = group_kind::window, .num_layers = 4, .key_dim = 3, .value_dim = 5, .window = 12, .num_sinks = 5};
inline constexpr auto window =
    group_config{.kind = group_kind::window, .num_layers = 2, .key_dim = 3, .value_dim = 3, .window = 9};
inline constexpr auto chunked =
    group_config{.kind = group_kind::chunked, .num_kv_heads = 3, .key_dim = 2, .value_dim = 2, .window = 20};
inline constexpr auto latent = group_config{.kind = group_kind::latent, .num_layers = 3, .key_dim = 8, .value_dim = 5};
inline constexpr auto state =
    group_config{.kind = group_kind::state, .num_layers = 2, .num_kv_heads = 3, .state_bytes = 40};

[[nodiscard]] inline std::vector<std::pair<std::string, group_list>> named_group_lists() {
  return {{"Llama 3.1", small(presets::llama_3_1_8b)},
          {"Gemma 3", small(presets::gemma_3_27b)},
          {"gpt-oss", small(presets::gpt_oss_120b)},
          {"DeepSeek V3", small(presets::deepseek_v3)},
          {"Qwen3-Next", small(presets::qwen3_next_80b)},
          {"Jamba 1.5", small(presets::jamba_1_5_large)},
          {"Llama 4", small(presets::llama_4_scout)},
          {"sinks", {full, with_sinks}},
          {"every kind", {with_sinks, latent, full, chunked, state}},
          {"one window", {window}},
          {"windows only", {chunked, with_sinks}},
          {"a window and states", {window, state}},
          {"states only", {state}}};
}

/// Pools from those in which one prompt hardly fits to those that evict nothing.
[[nodiscard]] inline cache_config draw_config(const group_list& groups, std::int32_t piece, std::uint64_t seed) {
  auto random = std::mt19937_64{seed};
  const auto between = [&](int low, int high) { return std::uniform_int_distribution{low, high}(random); };
  auto config = cache_config{};
  config.groups = groups;
  config.block_size = std::max(piece, std::vector{1, 4, 8}[static_cast<std::size_t>(between(0, 2))]);
  config.max_sequences = between(1, 8);
  config.hash_seed = seed + 1;
  const auto plan = plan_memory(groups, size_of_element<float32>, config.block_size).value();
  const auto num_tokens = between(0, 3) == 0 ? between(500, 1000) : between(30, 200);
  for (const auto& group : plan.groups) {
    config.num_blocks += group.blocks_per_state * between(1, 6);
    config.num_blocks += group.block_size == 0 ? 0 : num_tokens / group.block_size + 1;
  }
  config.max_blocks = config.num_blocks + between(0, config.num_blocks);
  return config;
}

}  // namespace pagedkv::test::lists
