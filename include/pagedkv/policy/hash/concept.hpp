#pragma once

#include <pagedkv/core/ids.hpp>
#include <xxhash.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv {

/// Hashes the tokens of one full block, chained: `previous` is the hash of the block before it, or of the root of its
/// salt. Equal chains have equal hashes; unequal ones may too, so a hash is only ever a place to look.
template <class H>
concept block_hash = requires(std::uint64_t previous, std::span<const token> tokens) {
  { H::hash(previous, tokens) } noexcept -> std::same_as<std::uint64_t>;
};

/// XXH3, 64 bits, seeded with the previous hash: xxHash's own, called as its header is configured.
struct xxh3_hash {
  [[nodiscard]] static std::uint64_t hash(std::uint64_t previous, std::span<const token> tokens) noexcept {
    return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), previous);
  }
};

static_assert(block_hash<xxh3_hash>);

}  // namespace pagedkv
