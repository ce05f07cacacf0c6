#pragma once

#include <pagedkv/policy/layout/nhd_layer_major.hpp>
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

/// Of a valid configuration with one block.
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

/// The configuration with the largest number of blocks whose storage, padding and scales included, fits into `bytes`; of
/// a model whose layers it describes, in groups or not. Its `num_blocks` and `max_blocks` are not read. Metadata is not
/// included.
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

/// The same of a model without groups.
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
