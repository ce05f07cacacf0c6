#pragma once

#include <pagedkv/core/group_config.hpp>

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
