#pragma once

#include <xxhash.h>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/hash/all.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace pagedkv {

/// Names blocks by their contents and all contents before them, so that a router and every worker agree about the name.
///
/// | requirement              | meaning                                                                         |
/// |--------------------------|---------------------------------------------------------------------------------|
/// | `k.first(tokens)`        | the key of a block that starts a sequence                                       |
/// | `k.next(parent, tokens)` | the key of a block behind the one named `parent`                                |
///
/// A minimal model:
///
///     struct own_keys {
///       std::uint64_t first(std::span<const token> tokens) const noexcept { return next(0, tokens); }
///       std::uint64_t next(std::uint64_t parent, std::span<const token> tokens) const noexcept {
///         return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), parent);
///       }
///     };
template <class K>
concept block_keys = std::copyable<K> && requires(const K keys, std::uint64_t parent, std::span<const token> tokens) {
  { keys.first(tokens) } noexcept -> std::same_as<std::uint64_t>;
  { keys.next(parent, tokens) } noexcept -> std::same_as<std::uint64_t>;
};

/// Keys that tell adapters of a model apart: `k.with_adapter(name)` are those of the blocks that it computed.
template <class K>
concept adapter_keys = block_keys<K> && requires(const K keys, std::string_view name) {
  { keys.with_adapter(name) } noexcept -> std::same_as<K>;
};

/// Writes the keys of a prompt's full blocks, as many as `keys` has room for; returns how many.
template <block_keys Keys>
[[nodiscard]] std::size_t prompt_keys(const Keys& scheme, std::span<const token> prompt, std::size_t block_size,
                                      std::span<std::uint64_t> keys) noexcept {
  const auto count = std::min(prompt.size() / block_size, keys.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto tokens = prompt.subspan(i * block_size, block_size);
    keys[i] = i == 0 ? scheme.first(tokens) : scheme.next(keys[i - 1], tokens);
  }
  return count;
}

/// The hashes that this library's caches report in events, as docs/events.md defines them, for blocks without prefix
/// keys.
class cache_keys {
 public:
  /// Keys of caches with this `cache_config::hash_seed` and sequences with this salt.
  explicit cache_keys(std::uint64_t hash_seed, salt tenant = salt::none) noexcept {
    const auto bits = static_cast<std::uint64_t>(tenant);
    const auto halves = std::array{static_cast<token>(bits >> 32), static_cast<token>(bits & 0xffff'ffffU)};
    root_ = xxh3_hash::hash(hash_seed, halves);
  }

  [[nodiscard]] std::uint64_t first(std::span<const token> tokens) const noexcept { return next(root_, tokens); }
  [[nodiscard]] std::uint64_t next(std::uint64_t parent, std::span<const token> tokens) const noexcept {
    return xxh3_hash::hash(parent, tokens);
  }

 private:
  std::uint64_t root_;
};

static_assert(block_keys<cache_keys>);

/// The sequence hashes of NVIDIA Dynamo's router: XXH3 of a block's tokens as little-endian 32-bit numbers, seeded with
/// 1337, then XXH3 with that seed of the pair of the hash before it and the block's own, chained from the first block
/// on. An adapter's name adds its own XXH3 to the seed of the tokens' hash.
class dynamo_keys {
 public:
  static constexpr auto seed = std::uint64_t{1337};

  explicit dynamo_keys(std::string_view adapter = {}) noexcept
      : token_seed_(adapter.empty() ? seed : seed + XXH3_64bits(adapter.data(), adapter.size())) {}

  /// Keys for the prompts of an adapter, or without a name for those of none.
  [[nodiscard]] dynamo_keys with_adapter(std::string_view name) const noexcept { return dynamo_keys{name}; }

  [[nodiscard]] std::uint64_t first(std::span<const token> tokens) const noexcept {
    return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), token_seed_);
  }
  [[nodiscard]] std::uint64_t next(std::uint64_t parent, std::span<const token> tokens) const noexcept {
    const auto pair = std::array{parent, first(tokens)};
    return XXH3_64bits_withSeed(pair.data(), sizeof(pair), seed);
  }

 private:
  std::uint64_t token_seed_;
};

static_assert(adapter_keys<dynamo_keys>);
static_assert(std::endian::native == std::endian::little, "tokens are hashed as they lie in memory");

}  // namespace pagedkv
