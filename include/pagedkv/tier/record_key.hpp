#pragma once

#include <xxhash.h>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/policy/tiers/concept.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace pagedkv {

namespace detail {

[[nodiscard]] inline record_key to_record_key(XXH128_hash_t hash) noexcept { return {hash.low64, hash.high64}; }

}  // namespace detail

/// The key before the first block of chains with this salt.
[[nodiscard]] inline record_key root_key(salt salt) noexcept {
  return detail::to_record_key(XXH3_128bits(&salt, sizeof(salt)));
}

/// The key of the block with these contents after `parent`: 128 bits of XXH3 over salt, tokens and keys. A reader compares
/// a record's salt, tokens and keys exactly; its ancestors are records that were compared in the same way, so only a
/// collision of two ancestors' 128 bits could confuse chains.
[[nodiscard]] inline record_key chained_key(const record_key& parent, const block_contents& contents) noexcept {
  const auto keys = XXH3_128bits(contents.keys.data(), contents.keys.size_bytes());
  const auto tokens = XXH3_128bits(contents.tokens.data(), contents.tokens.size_bytes());
  const auto words =
      std::to_array({parent.low, parent.high, keys.low64, keys.high64, tokens.low64, tokens.high64});
  return detail::to_record_key(XXH3_128bits(words.data(), sizeof(words)));
}

/// Calls `visit(contents)` on each run of so many of a record's tokens, which begin at this position of the sequence.
template <class Visit>
constexpr void for_each_run(const block_contents& contents, std::int64_t position, std::size_t size, Visit&& visit) {
  for (auto first = std::size_t{0}; first + size <= contents.tokens.size(); first += size) {
    const auto from = position + static_cast<std::int64_t>(first);
    const auto keys = keys_between(contents.keys, from, from + static_cast<std::int64_t>(size));
    visit(block_contents{contents.tokens.subspan(first, size), keys});
  }
}

}  // namespace pagedkv
