#pragma once

#include <pagedkv/policy/hash/xxh3_hash.hpp>
#include <pagedkv/router/concept.hpp>

#include <array>
#include <cstdint>
#include <span>

namespace pagedkv {

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

}  // namespace pagedkv
