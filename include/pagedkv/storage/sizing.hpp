#pragma once

#include <pagedkv/core/config.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/storage/layout.hpp>
#include <pagedkv/storage/memory_plan.hpp>

#include <concepts>
#include <cstdint>
#include <limits>

namespace pagedkv {

/// The sizes that a model determines.
struct model_shape {
  std::int32_t num_layers = 1;
  std::int32_t num_kv_heads = 1;
  std::int32_t head_dim = 64;  // numbers
};

/// Llama 3.2 1B: group size 4.
inline constexpr auto small_model = model_shape{.num_layers = 16, .num_kv_heads = 8, .head_dim = 64};

/// Llama 3.1 8B: group size 4.
inline constexpr auto medium_model = model_shape{.num_layers = 32, .num_kv_heads = 8, .head_dim = 128};

/// Llama 3.1 70B: group size 8.
inline constexpr auto large_model = model_shape{.num_layers = 80, .num_kv_heads = 8, .head_dim = 128};

namespace detail {

[[nodiscard]] inline result<cache_config> with_blocks(cache_config config, std::int64_t num_blocks) noexcept {
  constexpr auto limit = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  if (num_blocks > limit) {
    return error{error_code::size_overflow, "cache_config.num_blocks", num_blocks, limit};
  }
  config.num_blocks = static_cast<std::int32_t>(num_blocks);
  return config;
}

[[nodiscard]] inline cache_config one_block(const model_shape& shape, std::int32_t block_size) noexcept {
  auto config = cache_config{};
  config.block_size = block_size;
  config.num_blocks = 1;
  config.num_layers = shape.num_layers;
  config.num_kv_heads = shape.num_kv_heads;
  config.head_dim = shape.head_dim;
  return config;
}

/// Bytes of a block; the configuration is valid, and has one block.
[[nodiscard]] inline result<std::int64_t> block_bytes(const cache_config& config, element_size element) noexcept {
  if (!config.groups.empty()) {
    const auto plan = plan_memory(config.groups, element, config.block_size);
    return plan ? result<std::int64_t>{plan->block_bytes} : plan.error();
  }
  if (element.bytes < 1) {
    return error{error_code::invalid_argument, "element_size.bytes", element.bytes, 1};
  }
  if (element.scale_bytes < 0) {
    return error{error_code::invalid_argument, "element_size.scale_bytes", element.scale_bytes, 0};
  }
  // The orders of dimensions and layers do not change the size, and the size is proportional to the number of blocks.
  const auto plan = plan_storage<nhd_layer_major>(config, element);
  return plan ? result<std::int64_t>{plan->bytes} : plan.error();
}

}  // namespace detail

/// The configuration with the largest number of blocks whose storage, padding and scales included, fits into `bytes`;
/// of a model whose layers it describes, in groups or not. Its `num_blocks` and `max_blocks` are not read. Metadata is
/// not included.
///
/// Errors: those of `validate` and of `plan_memory`; `invalid_argument` for an element without bytes, and when not even
/// one block fits, with the bytes of one as the limit; `size_overflow` when more blocks fit than an int32 can number.
template <std::same_as<cache_config> Config>  // so that a list in braces is a `model_shape`
[[nodiscard]] result<cache_config> config_for_memory_budget(Config config, element_size element,
                                                            std::int64_t bytes) noexcept {
  config.num_blocks = 1;
  config.max_blocks = 0;
  if (const auto valid = validate(config); !valid) {
    return valid.error();
  }
  const auto block_bytes = detail::block_bytes(config, element);
  if (!block_bytes) {
    return block_bytes.error();
  }
  if (bytes < *block_bytes) {
    return error{error_code::invalid_argument, "memory budget in bytes", bytes, *block_bytes};
  }
  return detail::with_blocks(config, bytes / *block_bytes);
}

/// The configuration for a model without groups.
[[nodiscard]] inline result<cache_config> config_for_memory_budget(
    const model_shape& shape, element_size element, std::int64_t bytes,
    std::int32_t block_size = cache_config{}.block_size) noexcept {
  return config_for_memory_budget(detail::one_block(shape, block_size), element, bytes);
}

/// Blocks for `num_sequences` sequences of `num_tokens` tokens each that share nothing; also sets `max_sequences`.
///
/// Errors: those of `validate`; `invalid_argument` for a length or count below one; `size_overflow` when more blocks
/// are needed than an int32 can number.
[[nodiscard]] inline result<cache_config> config_for_context_length(
    const model_shape& shape, std::int64_t num_tokens, std::int32_t num_sequences,
    std::int32_t block_size = cache_config{}.block_size) noexcept {
  auto config = detail::one_block(shape, block_size);
  if (const auto valid = validate(config); !valid) {
    return valid.error();
  }
  if (num_tokens < 1) {
    return error{error_code::invalid_argument, "context length in tokens", num_tokens, 1};
  }
  if (num_sequences < 1) {
    return error{error_code::invalid_argument, "number of sequences", num_sequences, 1};
  }
  config.max_sequences = num_sequences;
  auto size = checked_size{};
  const auto num_blocks = size.multiply((num_tokens - 1) / block_size + 1, num_sequences);
  if (size.overflowed()) {
    return error{error_code::size_overflow, "context length in tokens whose blocks 63 bits do not count", num_tokens};
  }
  return detail::with_blocks(config, num_blocks);
}

}  // namespace pagedkv

/// Groups of published models, for `cache_config::groups`. Counts of heads and layers are those of a whole model:
/// divide `num_kv_heads` by the degree of tensor parallelism. States follow the layout that the models' authors run:
/// the recurrent part, then the last `kernel - 1` inputs of the convolution in bfloat16.
namespace pagedkv::presets {

/// Llama 3.1 8B. Source: `config.json` of meta-llama/Llama-3.1-8B.
inline constexpr auto llama_3_1_8b =
    group_list{{.num_layers = 32, .num_kv_heads = 8, .key_dim = 128, .value_dim = 128}};

/// Gemma 3 27B: 62 layers, each sixth of full attention (`sliding_window_pattern`). Source: `config.json` of
/// google/gemma-3-27b-it.
inline constexpr auto gemma_3_27b = group_list{
    {.num_layers = 10, .num_kv_heads = 16, .key_dim = 128, .value_dim = 128},
    {.kind = group_kind::window,
     .num_layers = 52,
     .num_kv_heads = 16,
     .key_dim = 128,
     .value_dim = 128,
     .window = 1024},
};

/// gpt-oss 120B: `layer_types` alternate. Its sinks are one learned logit a head, an operand of attention, and no
/// tokens. Source: `config.json` of openai/gpt-oss-120b.
inline constexpr auto gpt_oss_120b = group_list{
    {.num_layers = 18, .num_kv_heads = 8, .key_dim = 64, .value_dim = 64},
    {.kind = group_kind::window, .num_layers = 18, .num_kv_heads = 8, .key_dim = 64, .value_dim = 64, .window = 128},
};

/// DeepSeek V3: `kv_lora_rank` 512, which is also V, and `qk_rope_head_dim` 64. Source: `config.json` of
/// deepseek-ai/DeepSeek-V3.
inline constexpr auto deepseek_v3 =
    group_list{{.kind = group_kind::latent, .num_layers = 61, .key_dim = 512 + 64, .value_dim = 512}};

/// Qwen3-Next 80B: `full_attention_interval` 4 of 48 layers. Each of the 32 value heads of a gated delta layer has a
/// state of 128 x 128 in float32, and of the convolution (kernel 4) its 128 channels and its share of 16 key and 16
/// query heads of 128. Source: `config.json` of Qwen/Qwen3-Next-80B-A3B-Instruct.
inline constexpr auto qwen3_next_80b = group_list{
    {.num_layers = 12, .num_kv_heads = 2, .key_dim = 256, .value_dim = 256},
    {.kind = group_kind::state,
     .num_layers = 36,
     .num_kv_heads = 32,
     .state_bytes = 128 * 128 * 4 + (128 + 128 / 2 + 128 / 2) * 3 * 2},
};

/// Jamba 1.5 Large: `attn_layer_period` 8 of 72 layers. A Mamba layer has 2 * 8,192 channels, each with `mamba_d_state`
/// 16 numbers in bfloat16 and three inputs of its convolution; channels are independent, and eight parts let eight
/// devices share a layer. Source: `config.json` of ai21labs/AI21-Jamba-1.5-Large.
inline constexpr auto jamba_1_5_large = group_list{
    {.num_layers = 9, .num_kv_heads = 8, .key_dim = 128, .value_dim = 128},
    {.kind = group_kind::state, .num_layers = 63, .num_kv_heads = 8, .state_bytes = 2 * 8192 / 8 * (16 + 3) * 2},
};

/// Llama 4 Scout: `no_rope_layer_interval` 4 of 48 layers; the others see chunks of 8,192 tokens
/// (`attention_chunk_size`). Source: `config.json` of meta-llama/Llama-4-Scout-17B-16E.
inline constexpr auto llama_4_scout = group_list{
    {.num_layers = 12, .num_kv_heads = 8, .key_dim = 128, .value_dim = 128},
    {.kind = group_kind::chunked,
     .num_layers = 36,
     .num_kv_heads = 8,
     .key_dim = 128,
     .value_dim = 128,
     .window = 8192},
};

}  // namespace pagedkv::presets
