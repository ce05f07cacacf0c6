#pragma once

#include <xxhash.h>
#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/hash/concept.hpp>

namespace pagedkv {

/// XXH3, 64 bits, seeded with the previous hash: xxHash's own, called as its header is configured.
struct xxh3_hash {
  [[nodiscard]] static std::uint64_t hash(std::uint64_t previous, std::span<const token> tokens) noexcept {
    return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), previous);
  }
};

static_assert(block_hash<xxh3_hash>);

/// Every hash, once: for programs whose users choose one, and for what runs over all of them.
using all_hashes = policy_list<xxh3_hash>;

}  // namespace pagedkv
