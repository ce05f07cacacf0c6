#pragma once

#include <pagedkv/core/ids.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <type_traits>

namespace pagedkv {

/// Contents that the tokens do not tell, such as the digest of an image, from a position on: blocks that end before it
/// are shared without regard to it, later ones only with equal keys. Compared exactly.
struct prefix_key {
  std::int64_t position = 0;             // of a token, counted from the start of the sequence
  std::array<std::uint64_t, 2> value{};  // for example half of a SHA-256

  friend bool operator==(const prefix_key&, const prefix_key&) = default;
};

namespace detail {

/// Out of line, so that loops over blocks without keys stay small.
[[nodiscard]] [[gnu::noinline]] constexpr std::span<const prefix_key> find_keys(std::span<const prefix_key> keys,
                                                                                std::int64_t first,
                                                                                std::int64_t last) noexcept {
  const auto is_before = [](const prefix_key& key, std::int64_t position) { return key.position < position; };
  const auto* const end = keys.data() + keys.size();
  const auto* const from = std::lower_bound(keys.data(), end, first, is_before);
  return {from, std::lower_bound(from, end, last, is_before)};
}

/// Arrays of whole numbers that are no tokens.
template <class Numbers>
concept other_numbers = !std::convertible_to<Numbers, std::span<const token>> && requires(const Numbers& numbers) {
  requires std::integral<std::remove_cvref_t<decltype(*std::data(numbers))>>;
};

}  // namespace detail

/// The keys of positions in [first, last); `keys` are in the order of their positions.
[[nodiscard]] constexpr std::span<const prefix_key> keys_between(std::span<const prefix_key> keys, std::int64_t first,
                                                                 std::int64_t last) noexcept {
  return keys.empty() ? keys : detail::find_keys(keys, first, last);
}

/// Contents of one block, given those of the blocks before it.
struct block_contents {
  std::span<const token> tokens;     // [block_size]
  std::span<const prefix_key> keys;  // [key]: of the positions in the block

  template <class Tokens>
  requires std::convertible_to<Tokens, std::span<const token>>
  constexpr block_contents(const Tokens& all_tokens, std::span<const prefix_key> all_keys = {}) noexcept
      : tokens(all_tokens), keys(all_keys) {}
};

/// Contents with so many tokens that to compare them is worth a call.
struct long_contents : block_contents {
  constexpr explicit long_contents(std::span<const token> all_tokens) noexcept : block_contents(all_tokens) {}
};

/// A prompt, or tokens to append. Made from tokens alone wherever there is no more to say.
struct token_run {
  std::span<const token> tokens;          // [token]
  std::span<const prefix_key> keys;       // [key]: in the order of their positions, of which several may be equal
  std::span<const std::uint64_t> hashes;  // [block of the sequence]: from the first on, as `hash_blocks` tells them

  constexpr token_run() noexcept = default;
  template <class Tokens>
  requires std::convertible_to<Tokens, std::span<const token>>
  constexpr token_run(const Tokens& its_tokens, std::span<const prefix_key> its_keys = {},
                      std::span<const std::uint64_t> its_hashes = {}) noexcept
      : tokens(its_tokens), keys(its_keys), hashes(its_hashes) {}
  template <detail::other_numbers Numbers>
  token_run(const Numbers&,  // compilers show this line: tokens are of the type `pagedkv::token`, std::int32_t
            std::span<const prefix_key> = {}, std::span<const std::uint64_t> = {}) = delete;

  /// Whether it has neither keys nor hashes.
  [[nodiscard]] constexpr bool tokens_only() const noexcept { return keys.empty() && hashes.empty(); }

  /// A block's contents in a run that starts a sequence.
  [[nodiscard]] constexpr block_contents block(std::size_t index, std::size_t block_size) const noexcept {
    const auto first = index * block_size;
    return {tokens.subspan(first, block_size),
            keys_between(keys, static_cast<std::int64_t>(first), static_cast<std::int64_t>(first + block_size))};
  }
};

}  // namespace pagedkv
