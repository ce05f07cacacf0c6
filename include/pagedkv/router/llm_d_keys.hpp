#pragma once

#include <pagedkv/router/keys.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace pagedkv {

namespace detail {

/// FNV-1a of 64 bits over canonical CBOR (RFC 8949, section 4.2: the shortest form of every length and number).
class cbor_fnv {
 public:
  constexpr void bytes(std::string_view text) noexcept {
    for (const auto character : text) {
      byte(static_cast<std::uint8_t>(character));
    }
  }

  constexpr void array(std::size_t size) noexcept { head(4, size); }
  constexpr void number(std::uint64_t value) noexcept { head(0, value); }
  constexpr void null() noexcept { byte(0xf6); }
  constexpr void text(std::string_view value) noexcept {
    head(3, value.size());
    bytes(value);
  }

  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return hash_; }

 private:
  constexpr void byte(std::uint8_t value) noexcept { hash_ = (hash_ ^ value) * 0x100'0000'01b3U; }

  constexpr void head(unsigned major, std::uint64_t value) noexcept {
    if (value < 24) {
      byte(static_cast<std::uint8_t>(major << 5 | value));
      return;
    }
    const auto log_bytes = value <= 0xffU ? 0U : value <= 0xffffU ? 1U : value <= 0xffff'ffffU ? 2U : 3U;
    byte(static_cast<std::uint8_t>(major << 5 | (24 + log_bytes)));
    for (auto shift = 8U << log_bytes; shift != 0;) {
      shift -= 8;
      byte(static_cast<std::uint8_t>(value >> shift));
    }
  }

  std::uint64_t hash_ = 0xcbf2'9ce4'8422'2325U;
};

}  // namespace detail

/// The keys of llm-d's router: FNV-1a over the canonical CBOR of `[parent, tokens, null]`. The parent of a first block
/// is such a hash of `[hash of the seed, null, model]`. Tokens count as unsigned.
class llm_d_keys {
 public:
  explicit llm_d_keys(std::string_view model, std::string_view hash_seed = {}) noexcept
      : seed_(hash_of(hash_seed)), root_(root(model)) {}

  /// llm-d takes the adapter's name for the model's.
  [[nodiscard]] llm_d_keys with_adapter(std::string_view name) const noexcept {
    auto keys = *this;
    keys.root_ = root(name);
    return keys;
  }

  [[nodiscard]] std::uint64_t first(std::span<const token> tokens) const noexcept { return next(root_, tokens); }
  [[nodiscard]] std::uint64_t next(std::uint64_t parent, std::span<const token> tokens) const noexcept {
    auto hash = detail::cbor_fnv{};
    hash.array(3);
    hash.number(parent);
    hash.array(tokens.size());
    for (const auto each : tokens) {
      hash.number(static_cast<std::uint32_t>(each));
    }
    hash.null();
    return hash.value();
  }

 private:
  [[nodiscard]] static std::uint64_t hash_of(std::string_view bytes) noexcept {
    auto hash = detail::cbor_fnv{};
    hash.bytes(bytes);
    return hash.value();
  }
  [[nodiscard]] std::uint64_t root(std::string_view model) const noexcept {
    auto hash = detail::cbor_fnv{};
    hash.array(3);
    hash.number(seed_);
    hash.null();
    hash.text(model);
    return hash.value();
  }

  std::uint64_t seed_;
  std::uint64_t root_;
};

static_assert(adapter_keys<llm_d_keys>);

}  // namespace pagedkv
