#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/element/parts/row.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pagedkv::replay {

/// The finaliser of Steele, Lea and Flood's SplitMix64: a permutation of the 64-bit numbers.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
  x = (x ^ x >> 27) * 0x94d049bb133111ebU;
  return x ^ x >> 31;
}

/// The tokens of a workload's block, which depend on its id alone: an arithmetic sequence that starts at one half of
/// the mixed id and proceeds by the other, so that a block costs little more than the stores.
inline void fill_tokens(std::uint64_t id, std::span<token> block) noexcept {
  constexpr auto largest = std::uint32_t{0x7fff'ffff};
  const auto start = static_cast<std::uint32_t>(mix(id));
  const auto step = static_cast<std::uint32_t>(mix(id) >> 32);
  auto* const out = block.data();
  for (std::size_t i = 0; i < block.size(); ++i) {
    out[i] = static_cast<token>((start + static_cast<std::uint32_t>(i) * step) & largest);
  }
}

/// Numbers in key and value that identify a workload's block.
inline constexpr auto row_dim = std::size_t{2};
using row = std::array<float, row_dim>;

/// Key and value of a block's first token: whole numbers up to 127, and as that is their largest, int8's scale is 1.
struct key_value {
  row key;
  row value;
};

/// The same as a cache of this element gives them back.
template <element Element>
[[nodiscard]] key_value stored_and_read(key_value rows) noexcept {
  for (auto* const numbers : {&rows.key, &rows.value}) {
    auto stored = std::array<typename Element::storage, row_dim>{};
    const auto scale = encode_row<Element>(*numbers, stored);
    decode_row<Element>(stored, scale, *numbers);
  }
  return rows;
}

[[nodiscard]] inline key_value rows_of(std::uint64_t id) noexcept {
  const auto digest = mix(~id);
  const auto number = [&](int shift) {
    return static_cast<float>(static_cast<std::int32_t>(digest >> shift & 0xff) % 128);
  };
  return {{127, number(0)}, {127, number(8)}};
}

}  // namespace pagedkv::replay
