#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/axis.hpp>

#include <concepts>
#include <cstdint>
#include <span>

namespace pagedkv {

/// Hashes the tokens of one full block, chained: `previous` is the hash of the block before it, or of the root of its
/// salt. Equal chains have equal hashes; unequal ones may too, so a hash only selects candidates.
///
/// | requirement                 | meaning                                                                          |
/// |-----------------------------|----------------------------------------------------------------------------------|
/// | `H::hash(previous, tokens)` | of these tokens behind a block, or a root, whose hash is `previous`; static      |
///
/// A minimal model:
///
///     struct own_hash {
///       static std::uint64_t hash(std::uint64_t previous, std::span<const token> tokens) noexcept {
///         for (const auto next : tokens) {
///           previous = (previous ^ static_cast<std::uint32_t>(next)) * 0x9e3779b97f4a7c15;
///         }
///         return previous;
///       }
///     };
template <class H>
concept block_hash = requires(std::uint64_t previous, std::span<const token> tokens) {
  { H::hash(previous, tokens) } noexcept -> std::same_as<std::uint64_t>;
};

struct hash_axis {
  template <class Policy>
  static constexpr bool takes = block_hash<Policy>;

  template <class Defaults, class...>
  using default_policy = typename Defaults::hash_type;

  template <bool Is>
  struct at_most_one {
    static_assert(Is, "two hashes are given, and a cache has one: leave the other out");
  };

  template <class Policy>
  static constexpr bool resembles = requires { &Policy::hash; };

  template <class Policy>
  struct lacks {
    static constexpr auto unmet = detail::first_unmet({block_hash<Policy>});
    static_assert(unmet != 0,
                  "this type is nearly a hash: `hash` is not static, may throw or has another form; write `static "
                  "std::uint64_t hash(std::uint64_t previous, std::span<const token> tokens) noexcept`");
  };
};

}  // namespace pagedkv
