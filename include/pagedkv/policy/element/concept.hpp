#pragma once

#include <concepts>
#include <string_view>
#include <type_traits>

namespace pagedkv {

/// How one K or V number is stored. Arithmetic is float32; host and device share every function. A NaN decodes to NaN,
/// and an infinity to no finite number: through `absmax`, which is not finite for a row that holds one, a scaled
/// element may spoil the whole row instead.
///
/// | requirement                | meaning                                                                        |
/// |----------------------------|--------------------------------------------------------------------------------|
/// | `E::storage`               | trivially copyable type of one stored number                                   |
/// | `E::scaled`                | whether a float32 scale per token and KV head goes with the numbers            |
/// | `E::name`                  | for tables and options, e.g. "float16"                                         |
/// | `E::scale_for(absmax)`     | the scale of a row whose largest magnitude is `absmax`; 1 for unscaled elements |
/// | `E::encode(number, scale)` | nearest stored number; the scale is that of a row that holds the number         |
/// | `E::decode(stored, scale)` | its value                                                                      |
///
/// An unscaled element may also have `encode_eight(numbers, stored)` and `decode_eight(stored, numbers)`, with the same
/// bits, for processors with `PAGEDKV_WIDE` vectors.
///
/// A minimal model:
///
///     struct own_element {
///       using storage = float;
///       static constexpr bool scaled = false;
///       static constexpr std::string_view name = "own_element";
///       static float scale_for(float) noexcept { return 1; }
///       static storage encode(float number, float) noexcept { return number; }
///       static float decode(storage stored, float) noexcept { return stored; }
///     };
template <class E>
concept element = requires(float number, float scale, typename E::storage stored) {
  requires std::is_trivially_copyable_v<typename E::storage>;
  { E::scaled } -> std::convertible_to<bool>;
  { E::name } -> std::convertible_to<std::string_view>;
  { E::scale_for(number) } noexcept -> std::same_as<float>;
  { E::encode(number, scale) } noexcept -> std::same_as<typename E::storage>;
  { E::decode(stored, scale) } noexcept -> std::same_as<float>;
};

struct element_axis {
  template <class Policy>
  static constexpr bool takes = element<Policy>;

  template <class Defaults, class...>
  using default_policy = typename Defaults::element_type;

  template <bool Is>
  struct at_most_one {
    static_assert(Is, "two elements are given, and a cache stores one: leave the other out");
  };
};

}  // namespace pagedkv
