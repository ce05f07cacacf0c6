#pragma once

#include <pagedkv/core/ids.hpp>

#include <concepts>
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

}  // namespace pagedkv
