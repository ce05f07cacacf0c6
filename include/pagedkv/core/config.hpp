#pragma once

#include <pagedkv/core/result.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>

namespace pagedkv {

/// Kinds of layers, by what the next token reads of those before it.
enum class group_kind : std::uint8_t {
  full,     // all
  window,   // the last `window - 1`, and the first `num_sinks`
  chunked,  // those since the last multiple of `window`
  latent,   // all, from one vector a token: V is its first `value_dim` numbers
  state,    // a state of fixed size; no tokens
};

/// Layers of one kind, which share block tables.
struct group_config {
  group_kind kind = group_kind::full;
  std::int32_t num_layers = 1;
  std::int32_t num_kv_heads = 1;  // state: parts of a layer's state, each of them contiguous
  std::int32_t key_dim = 64;      // numbers in one key of one head; latent: in a token's vector
  std::int32_t value_dim = 64;    // numbers in one value of one head
  std::int64_t window = 0;        // window: tokens that a query sees, its own included; chunked: those of a chunk
  std::int32_t num_sinks = 0;     // window: leading tokens that stay
  std::int64_t state_bytes = 0;   // state: bytes of one part, opaque
  const float* scales = nullptr;  // as `cache_config::scales`; latent: for each layer one, of its vectors

  /// Whether its blocks hold K/V of tokens, rather than parts of a state.
  [[nodiscard]] constexpr bool holds_tokens() const noexcept { return kind != group_kind::state; }

  /// The first token, sinks aside, that a token at this position or a later one may read.
  [[nodiscard]] constexpr std::int64_t first_needed(std::int64_t position) const noexcept {
    switch (kind) {
      case group_kind::window: return std::max(position - window + 1, std::int64_t{0});
      case group_kind::chunked: return position - position % window;
      case group_kind::state: return position;
      case group_kind::full:
      case group_kind::latent: break;
    }
    return 0;
  }
};

/// The groups of a model, in order; at most `max_size`.
class group_list {
 public:
  static constexpr auto max_size = std::size_t{8};

  constexpr group_list() noexcept = default;
  constexpr group_list(std::initializer_list<group_config> groups) noexcept : group_list(std::span(groups)) {}
  constexpr explicit group_list(std::span<const group_config> groups) noexcept : size_(groups.size()) {
    std::copy_n(groups.begin(), std::min(size_, max_size), groups_.begin());
  }

  /// The number of groups that were given. More than `max_size` are not kept, and `validate` refuses the list.
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] constexpr const group_config& operator[](std::size_t index) const noexcept { return groups_[index]; }
  [[nodiscard]] constexpr auto begin() const noexcept { return all().begin(); }
  [[nodiscard]] constexpr auto end() const noexcept { return all().end(); }
  [[nodiscard]] constexpr std::span<const group_config> all() const noexcept {
    return std::span(groups_).first(std::min(size_, max_size));
  }

 private:
  std::array<group_config, max_size> groups_{};
  std::size_t size_ = 0;
};

/// Errors: `invalid_argument` names the first field that the kind of layers needs and lacks, or that has no meaning for
/// it; `size_overflow` when there are more heads in all layers than an int32 counts.
[[nodiscard]] constexpr result<void> validate(const group_config& group) noexcept {
  struct field {
    const char* subject;
    std::int64_t value;
    std::int64_t least;
    std::int64_t most;
  };
  constexpr auto any = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  constexpr auto any_size = std::numeric_limits<std::int64_t>::max();
  const auto is = [&](group_kind kind) { return group.kind == kind; };
  const bool holds_tokens = group.holds_tokens();
  const bool has_window = is(group_kind::window) || is(group_kind::chunked);
  const auto fields = std::array{
      field{"group_config.num_layers", group.num_layers, 1, any},
      field{"group_config.num_kv_heads", group.num_kv_heads, 1, is(group_kind::latent) ? 1 : any},
      field{"group_config.key_dim", group.key_dim, holds_tokens ? 1 : 0, any},
      field{"group_config.value_dim", group.value_dim, holds_tokens ? 1 : 0,
            is(group_kind::latent) ? group.key_dim : any},
      field{"group_config.window", group.window, has_window ? 1 : 0, has_window ? any : 0},
      field{"group_config.num_sinks", group.num_sinks, 0, is(group_kind::window) ? any : 0},
      field{"group_config.state_bytes", group.state_bytes, holds_tokens ? 0 : 1, holds_tokens ? 0 : any_size},
  };
  for (const auto& [subject, value, least, most] : fields) {
    if (value < least || value > most) {
      return error{error_code::invalid_argument, subject, value, value < least ? least : most};
    }
  }
  if (group.scales != nullptr && !holds_tokens) {
    return error{error_code::invalid_argument, "group_config.scales of a state", 1, 0};
  }
  if (const auto num_parts = std::int64_t{group.num_layers} * group.num_kv_heads; num_parts > any) {
    return error{error_code::size_overflow, "group_config.num_layers * num_kv_heads", num_parts, any};
  }
  return {};
}

/// Errors: those of each group; `invalid_argument` for more than `group_list::max_size`.
[[nodiscard]] constexpr result<void> validate(const group_list& groups) noexcept {
  if (groups.size() > group_list::max_size) {
    return error{error_code::invalid_argument, "number of cache_config.groups",
                 static_cast<std::int64_t>(groups.size()), std::int64_t{group_list::max_size}};
  }
  for (const auto& group : groups) {
    if (const auto valid = validate(group); !valid) {
      return valid;
    }
  }
  return {};
}

/// The sizes of a cache. A plain value: `validate` says whether it can be built.
///
/// Without `groups`, all layers attend to all tokens and have K and V of one size. Groups replace the three sizes of
/// layers. Hits are then multiples of `block_size`, and `plan_memory` decides how many tokens a block of each group
/// holds.
///
/// `scales` are those of an element whose scales the engine gives: [layer][K, V], or with `head_scale` [layer][K, V][KV
/// head]. Positive numbers in the engine's memory, which operations read where they run: on a device, device memory.
/// They are not copied, and stay as they are as long as K/V that was written with them is read. Null: 1. With groups,
/// each has its own (`group_config::scales`).
struct cache_config {
  std::int32_t block_size = 16;       // tokens in a block
  std::int32_t num_blocks = 0;        // blocks in the pool, at first
  std::int32_t max_blocks = 0;        // blocks that the pool may grow to; 0 for `num_blocks`
  std::int32_t num_layers = 1;        // layers of the model
  std::int32_t num_kv_heads = 1;      // key/value heads in a layer
  std::int32_t head_dim = 64;         // numbers in one key or value of one head
  std::int32_t max_sequences = 4096;  // sequences alive at once
  std::uint64_t hash_seed = 0;        // of the prefix index; 0 draws one at random
  group_list groups = {};             // kinds of layers; empty: one of full attention
  const float* scales = nullptr;      // [layer][K, V], or [layer][K, V][KV head]: see above

  /// Blocks that there are addresses and metadata for.
  [[nodiscard]] constexpr std::int32_t capacity() const noexcept { return max_blocks == 0 ? num_blocks : max_blocks; }
};

/// Errors: those of the groups; `invalid_argument` names the first field that is not positive, `max_blocks` below
/// `num_blocks`, or `scales` beside groups; `size_overflow` when K and V of one layer of one block are more numbers
/// than an int32 indexes. Slots need no check: the product of two int32 fits an int64.
[[nodiscard]] inline result<void> validate(const cache_config& config) noexcept {
  struct field {
    const char* subject;
    std::int32_t value;
  };
  const auto fields = std::array{
      field{"cache_config.block_size", config.block_size}, field{"cache_config.num_blocks", config.num_blocks},
      field{"cache_config.num_layers", config.num_layers}, field{"cache_config.num_kv_heads", config.num_kv_heads},
      field{"cache_config.head_dim", config.head_dim},     field{"cache_config.max_sequences", config.max_sequences},
  };
  for (const auto& [subject, value] : fields) {
    if (value <= 0) {
      return error{error_code::invalid_argument, subject, value, 1};
    }
  }
  if (config.max_blocks != 0 && config.max_blocks < config.num_blocks) {
    return error{error_code::invalid_argument, "cache_config.max_blocks", config.max_blocks, config.num_blocks};
  }
  if (config.scales != nullptr && !config.groups.empty()) {
    return error{error_code::invalid_argument, "cache_config.scales beside groups, which have their own,", 1, 0};
  }
  constexpr auto limit = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  const auto rows = std::int64_t{config.block_size} * config.num_kv_heads;
  if (rows > limit) {
    return error{error_code::size_overflow, "cache_config.block_size * num_kv_heads", rows, limit};
  }
  const auto numbers = rows * config.head_dim * 2;
  if (numbers > limit) {
    return error{error_code::size_overflow, "cache_config.block_size * num_kv_heads * head_dim * 2", numbers, limit};
  }
  return validate(config.groups);
}

}  // namespace pagedkv
