#pragma once

#include <pagedkv/core/checked.hpp>
#include <pagedkv/core/config.hpp>
#include <pagedkv/storage/layout.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace pagedkv {

/// How one group uses blocks.
struct group_plan {
  std::int32_t block_size = 0;        // tokens in a block, a multiple of the hit granularity; 0 for states
  std::int32_t parts_per_block = 0;   // of a state
  std::int32_t blocks_per_state = 0;  // for all parts of all layers
  std::int64_t part_bytes = 0;        // one layer of a block's tokens, or one part of a state; padding included
};

/// Blocks of equal bytes that serve every group.
struct memory_plan {
  std::int64_t block_bytes = 0;
  std::int32_t hit_granularity = 0;  // tokens
  std::array<group_plan, group_list::max_size> groups = {};
};

/// Bytes of one layer of so many tokens, scales and padding included; a size beyond 63 bits is noted in `size`.
[[nodiscard]] constexpr std::int64_t layer_bytes(const group_config& group, element_size element,
                                                 std::int64_t num_tokens, checked_size& size) noexcept {
  const bool one_vector = group.kind == group_kind::latent;
  const auto rows = size.multiply(num_tokens, group.num_kv_heads);
  const auto numbers = size.multiply(rows, std::int64_t{group.key_dim} + (one_vector ? 0 : group.value_dim));
  const auto scales = size.multiply(size.multiply(rows, one_vector ? 1 : 2), element.scale_bytes);
  const auto scale_start = size.round_up(size.multiply(numbers, element.bytes), alignof(float));
  return size.round_up(size.add(scale_start, scales), block_alignment);
}

/// Blocks that a sequence holds for a group: its tokens from the first needed one on and its sinks, or one state.
[[nodiscard]] constexpr std::int64_t num_sequence_blocks(const group_config& group, const group_plan& plan,
                                                         std::int64_t num_tokens) noexcept {
  if (!group.holds_tokens()) {
    return plan.blocks_per_state;
  }
  const auto end = (num_tokens + plan.block_size - 1) / plan.block_size;
  const auto first = group.first_needed(num_tokens) / plan.block_size;
  const auto end_of_sinks =
      (std::min<std::int64_t>(group.num_sinks, num_tokens) + plan.block_size - 1) / plan.block_size;
  return end - first + std::min(first, end_of_sinks);
}

/// Bytes of those tokens or that state, without padding. Requires a valid group whose `plan_memory` succeeded.
[[nodiscard]] constexpr std::int64_t payload_bytes(const group_config& group, element_size element,
                                                   std::int64_t num_tokens) noexcept {
  if (!group.holds_tokens()) {
    return group.state_bytes * group.num_kv_heads * group.num_layers;
  }
  const auto first = group.first_needed(num_tokens);
  const auto num_held = num_tokens - first + std::min<std::int64_t>(group.num_sinks, first);
  const bool one_vector = group.kind == group_kind::latent;
  const auto row = (std::int64_t{group.key_dim} + (one_vector ? 0 : group.value_dim)) * element.bytes +
                   (one_vector ? 1 : 2) * element.scale_bytes;
  return num_held * group.num_kv_heads * row * group.num_layers;
}

namespace detail {

/// Searches the bytes of a block that fit all groups best.
class block_search {
 public:
  constexpr block_search(const group_list& groups, element_size element, std::int32_t granularity,
                         std::int64_t typical_tokens) noexcept
      : groups_(groups), element_(element), granularity_(granularity), typical_tokens_(typical_tokens) {}

  [[nodiscard]] constexpr result<memory_plan> run() noexcept {
    auto least = std::int64_t{0};
    const auto states_alone = std::ranges::none_of(groups_, &group_config::holds_tokens);
    for (const auto& group : groups_) {
      const auto rows = std::int64_t{granularity_} * group.num_kv_heads;
      const auto numbers = size_.multiply(rows, std::int64_t{group.key_dim} + group.value_dim);
      if (group.holds_tokens() && numbers > max_numbers) {
        return error{error_code::size_overflow, "numbers of one layer in the tokens of a hit", numbers, max_numbers};
      }
      const auto units = states_alone ? std::min(num_parts(group), max_numbers) : std::int64_t{1};
      least = std::max(least, bytes_of(group, units));
    }
    if (size_.overflowed() || least > std::numeric_limits<std::int64_t>::max() / (2 * max_units)) {
      return too_large(least);
    }
    consider(least);
    for (const auto& group : groups_.size() > 1 ? groups_.all() : std::span<const group_config>{}) {
      const auto unit = unit_bytes(group);
      const auto most = group.holds_tokens() ? max_units : max_units * least / unit;
      for (auto units = std::int64_t{1}; units <= std::min(most, max_candidates); ++units) {
        const auto bytes = bytes_of(group, units);
        if (bytes > least && bytes <= max_units * least) {
          consider(bytes);
        }
      }
    }
    return size_.overflowed() || best_.block_bytes == 0 ? too_large(least) : result<memory_plan>{best_};
  }

 private:
  // Larger blocks mean fewer ids and longer runs, but also more waste behind the last token.
  static constexpr auto max_units = std::int64_t{8};
  static constexpr auto max_candidates = std::int64_t{4096};
  static constexpr auto max_numbers = std::int64_t{std::numeric_limits<std::int32_t>::max()};

  [[nodiscard]] static constexpr error too_large(std::int64_t bytes) noexcept {
    return {error_code::size_overflow, "bytes of a block that serves all cache_config.groups", bytes};
  }

  /// Bytes of the least that a block holds: tokens of one hit, or a part of a state.
  [[nodiscard]] constexpr std::int64_t unit_bytes(const group_config& group) noexcept { return bytes_of(group, 1); }
  [[nodiscard]] constexpr std::int64_t bytes_of(const group_config& group, std::int64_t units) noexcept {
    if (!group.holds_tokens()) {
      return size_.multiply(size_.round_up(group.state_bytes, block_alignment), units);
    }
    return size_.multiply(layer_bytes(group, element_, units * granularity_, size_), group.num_layers);
  }

  [[nodiscard]] static constexpr std::int64_t num_parts(const group_config& group) noexcept {
    return std::int64_t{group.num_kv_heads} * group.num_layers;
  }

  constexpr void consider(std::int64_t bytes) noexcept {
    auto plan = memory_plan{bytes, granularity_, {}};
    auto cost = 0.0;
    for (auto i = std::size_t{0}; i < groups_.size(); ++i) {
      plan.groups[i] = fit(groups_[i], bytes);
      cost += expected_blocks(groups_[i], plan.groups[i]) * static_cast<double>(bytes);
    }
    if (best_.block_bytes == 0 || cost < best_cost_) {
      best_ = plan;
      best_cost_ = cost;
    }
  }

  [[nodiscard]] constexpr group_plan fit(const group_config& group, std::int64_t bytes) noexcept {
    auto plan = group_plan{};
    if (group.holds_tokens()) {
      plan.block_size = static_cast<std::int32_t>(most_units(group, bytes) * granularity_);
      plan.part_bytes = layer_bytes(group, element_, plan.block_size, size_);
      return plan;
    }
    plan.part_bytes = unit_bytes(group);
    const auto per_block = std::min(bytes / plan.part_bytes, num_parts(group));
    plan.parts_per_block = static_cast<std::int32_t>(per_block);
    plan.blocks_per_state = static_cast<std::int32_t>((num_parts(group) + per_block - 1) / per_block);
    return plan;
  }

  /// Runs of tokens that fit: more than a single one's bytes suggest, because they share padding. Kernels index the
  /// numbers of one layer by an int32.
  [[nodiscard]] constexpr std::int64_t most_units(const group_config& group, std::int64_t bytes) noexcept {
    const auto numbers =
        std::int64_t{granularity_} * group.num_kv_heads * (std::int64_t{group.key_dim} + group.value_dim);
    auto fits = std::int64_t{1};
    auto exceeds =
        std::min(bytes / (numbers * element_.bytes * group.num_layers / 2 + 1) + 2, max_numbers / numbers + 1);
    while (exceeds - fits > 1) {
      const auto middle = fits + (exceeds - fits) / 2;
      (bytes_of(group, middle) <= bytes ? fits : exceeds) = middle;
    }
    return fits;
  }

  /// Blocks of a sequence of typical length: half of the last block is empty, and so is half of a window's first one.
  [[nodiscard]] constexpr double expected_blocks(const group_config& group, const group_plan& plan) const noexcept {
    if (!group.holds_tokens()) {
      return plan.blocks_per_state;
    }
    const auto first = group.first_needed(typical_tokens_);
    const auto num_held = typical_tokens_ - first + std::min<std::int64_t>(first, group.num_sinks);
    return static_cast<double>(num_held) / plan.block_size + (first > 0 ? 1.0 : 0.5);
  }

  const group_list& groups_;
  element_size element_;
  std::int32_t granularity_;
  std::int64_t typical_tokens_;
  checked_size size_;
  memory_plan best_;
  double best_cost_ = 0;
};

}  // namespace detail

/// The bytes of a block, the same for all groups, with which a sequence of `typical_tokens` takes the least memory. A
/// group with fewer bytes a token has more tokens in a block; parts of a state share blocks. Every block holds at least
/// `hit_granularity` tokens of each group, and at most eight times as many bytes as that takes; with one group, exactly
/// that. Where no group holds tokens, a block is a whole state.
///
/// Errors: those of `validate`; `invalid_argument` for an empty list, a size below one, or an element without bytes;
/// `size_overflow`.
[[nodiscard]] constexpr result<memory_plan> plan_memory(const group_list& groups, element_size element,
                                                        std::int32_t hit_granularity = 16,
                                                        std::int64_t typical_tokens = 1024) noexcept {
  if (const auto valid = validate(groups); !valid) {
    return valid.error();
  }
  struct field {
    const char* subject;
    std::int64_t value;
    std::int64_t least;
  };
  const auto fields = std::array{
      field{"number of cache_config.groups", static_cast<std::int64_t>(groups.size()), 1},
      field{"element_size.bytes", element.bytes, 1},
      field{"element_size.scale_bytes", element.scale_bytes, 0},
      field{"hit granularity in tokens", hit_granularity, 1},
      field{"typical length in tokens", typical_tokens, 1},
  };
  for (const auto& [subject, value, least] : fields) {
    if (value < least) {
      return error{error_code::invalid_argument, subject, value, least};
    }
  }
  return detail::block_search{groups, element, hit_granularity, typical_tokens}.run();
}

}  // namespace pagedkv
