#pragma once

#include <xxhash.h>
#include <pagedkv/router/concept.hpp>

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>

namespace pagedkv {

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
