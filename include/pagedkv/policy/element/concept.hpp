#pragma once

#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/policy/axis.hpp>

#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace pagedkv {

namespace detail {

template <class E>
concept has_storage = requires { requires std::is_trivially_copyable_v<typename E::storage>; };
template <class E>
concept has_scaled = requires {
  { E::scaled } -> std::convertible_to<bool>;
};
template <class E>
concept has_scale_for = requires(float number) {
  { E::scale_for(number) } noexcept -> std::same_as<float>;
};
template <class E>
concept has_encode = requires(float number, float scale) {
  { E::encode(number, scale) } noexcept -> std::same_as<typename E::storage>;
};
template <class E>
concept has_decode = requires(typename E::storage stored, float scale) {
  { E::decode(stored, scale) } noexcept -> std::same_as<float>;
};

/// A built-in type, such as float, in the place of the element that stores it.
template <class P>
concept number_itself = !std::is_class_v<P> && std::is_convertible_v<P, float>;

}  // namespace detail

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
/// An element whose scales the engine gives, because a tensor's or a head's numbers share one, has `scaled` false and
/// names `E::scale_type`, `tensor_scale` or `head_scale` (`core/storage_formats.hpp`). Its `scale_for` returns 1.
///
/// An element may also have `encode_eight(numbers, scale, stored)` and `decode_eight(stored, scale, numbers)`, with the
/// same bits, for processors with `PAGEDKV_WIDE` vectors. One of 8 bits has `halves_of<Pair>(four)`, as `float8` has,
/// for attention on devices; without it, its numbers are read as integers times the scale. Prompts on Hopper round what
/// `halves_of` gives to bfloat16, which holds all numbers of `int8` and `float8`; not values without scales of tokens.
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
concept element = detail::has_storage<E> && detail::has_scaled<E> && detail::has_name<E> && detail::has_scale_for<E> &&
                  detail::has_encode<E> && detail::has_decode<E>;

struct element_axis {
  template <class Policy>
  static constexpr bool takes = element<Policy>;

  template <class Defaults, class...>
  using default_policy = typename Defaults::element_type;

  template <bool Is>
  struct at_most_one {
    static_assert(Is, "two elements are given, and a cache stores one: leave the other out");
  };

  template <class Policy>
  static constexpr bool resembles = detail::number_itself<Policy> || requires { typename Policy::storage; } ||
                                    requires { &Policy::encode; } || requires { &Policy::decode; };

  template <class Policy>
  struct lacks {
    static constexpr auto unmet = detail::first_unmet(
        {!std::is_same_v<Policy, float>, !std::is_same_v<Policy, std::int8_t>, !detail::number_itself<Policy>,
         detail::has_storage<Policy>, detail::has_scaled<Policy>, detail::has_name<Policy>,
         detail::has_scale_for<Policy>, detail::has_encode<Policy>, detail::has_decode<Policy>});
    static_assert(unmet != 0, "`float` is a type of numbers and no policy: write the element `float32`");
    static_assert(unmet != 1, "`std::int8_t` is a type of numbers and no policy: write the element `int8`");
    static_assert(unmet != 2,
                  "a type of numbers is no policy: write the element that stores them, such as `float16` or `int8`");
    static_assert(unmet != 3,
                  "this type is nearly an element: `storage` is missing, or is not trivially copyable; write `using "
                  "storage = std::uint16_t`, or the type of a stored number");
    static_assert(unmet != 4,
                  "this type is nearly an element: `scaled` is missing or has another type; write `static constexpr "
                  "bool scaled`");
    static_assert(unmet != 5,
                  "this type is nearly an element: `name` is missing or has another type; write `static constexpr "
                  "std::string_view name`");
    static_assert(unmet != 6,
                  "this type is nearly an element: `scale_for` is missing, may throw or has another form; write "
                  "`static float scale_for(float absmax) noexcept`");
    static_assert(unmet != 7,
                  "this type is nearly an element: `encode` is missing, may throw or has another form; write `static "
                  "storage encode(float number, float scale) noexcept`");
    static_assert(unmet != 8,
                  "this type is nearly an element: `decode` is missing, may throw or has another form; write `static "
                  "float decode(storage stored, float scale) noexcept`");
  };
};

}  // namespace pagedkv
