#pragma once

#include <pagedkv/core/host_device.hpp>
#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/element/parts/float8.hpp>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace pagedkv {

/// OCP's 8-bit floating point with four bits of exponent and three of mantissa: numbers up to 448 times the scale, to
/// one part in 16; a number below 2^-6 times the scale is off by 2^-10 times the scale at most. Other rules: see
/// `float8`. `Scale`: `tensor_scale`, `head_scale` or `token_scale`.
template <class Scale>
struct basic_float8_e4m3 : float8<e4m3_format, Scale> {
  static constexpr std::string_view name = std::is_same_v<Scale, tensor_scale> ? "float8_e4m3"
                                           : std::is_same_v<Scale, head_scale> ? "float8_e4m3_head"
                                                                               : "float8_e4m3_token";
};

/// With one scale for all keys of a layer and one for all values, as engines read them from checkpoints.
struct float8_e4m3 : basic_float8_e4m3<tensor_scale> {};

static_assert(element<float8_e4m3>);
static_assert(element<basic_float8_e4m3<head_scale>>);
static_assert(element<basic_float8_e4m3<token_scale>>);

/// `float8_e4m3` in the format of AMD's CDNA 3 (gfx942), whose instructions convert no other: numbers up to 240 times
/// the scale; a number below 2^-7 times the scale is off by 2^-11 times the scale at most. No negative zero.
template <class Scale>
struct basic_float8_e4m3fnuz : float8<e4m3fnuz_format, Scale> {
  static constexpr std::string_view name = std::is_same_v<Scale, tensor_scale> ? "float8_e4m3fnuz"
                                           : std::is_same_v<Scale, head_scale> ? "float8_e4m3fnuz_head"
                                                                               : "float8_e4m3fnuz_token";
};

/// With one scale for all keys of a layer and one for all values, as engines read them from checkpoints.
struct float8_e4m3fnuz : basic_float8_e4m3fnuz<tensor_scale> {};

static_assert(element<float8_e4m3fnuz>);
static_assert(element<basic_float8_e4m3fnuz<head_scale>>);
static_assert(element<basic_float8_e4m3fnuz<token_scale>>);

/// OCP's 8-bit floating point with five bits of exponent and two of mantissa: numbers up to 57344 times the scale, to
/// one part in 8; a number below 2^-14 times the scale is off by 2^-17 times the scale at most. Bits of an infinity,
/// which encoding never writes, are read as one. Other rules: see `float8`. `Scale`: `tensor_scale`, `head_scale` or
/// `token_scale`.
template <class Scale>
struct basic_float8_e5m2 : float8<e5m2_format, Scale> {
  static constexpr std::string_view name = std::is_same_v<Scale, tensor_scale> ? "float8_e5m2"
                                           : std::is_same_v<Scale, head_scale> ? "float8_e5m2_head"
                                                                               : "float8_e5m2_token";
};

/// With one scale for all keys of a layer and one for all values, as engines read them from checkpoints.
struct float8_e5m2 : basic_float8_e5m2<tensor_scale> {};

static_assert(element<float8_e5m2>);
static_assert(element<basic_float8_e5m2<head_scale>>);
static_assert(element<basic_float8_e5m2<token_scale>>);

/// `float8_e5m2` in the format of AMD's CDNA 3 (gfx942), whose instructions convert no other: numbers up to 57344 times
/// the scale; a number below 2^-15 times the scale is off by 2^-18 times the scale at most. No negative zero, and no
/// infinity.
template <class Scale>
struct basic_float8_e5m2fnuz : float8<e5m2fnuz_format, Scale> {
  static constexpr std::string_view name = std::is_same_v<Scale, tensor_scale> ? "float8_e5m2fnuz"
                                           : std::is_same_v<Scale, head_scale> ? "float8_e5m2fnuz_head"
                                                                               : "float8_e5m2fnuz_token";
};

/// With one scale for all keys of a layer and one for all values, as engines read them from checkpoints.
struct float8_e5m2fnuz : basic_float8_e5m2fnuz<tensor_scale> {};

static_assert(element<float8_e5m2fnuz>);
static_assert(element<basic_float8_e5m2fnuz<head_scale>>);
static_assert(element<basic_float8_e5m2fnuz<token_scale>>);

/// Latent vectors of 512 numbers with a rotated part of 64, in the 656 bytes a token that DeepSeek's FlashMLA reads:
/// 512 bytes of 8-bit floating point (E4M3), four float32 scales, each of 128 neighbouring numbers, and 64 numbers of
/// bfloat16. Scales are absmax / 448, within the bounds of `row_scale`. Groups of latent vectors with these lengths
/// have this element, and no others.
///
/// `storage` is a byte of a token. The functions are those of the 8-bit numbers.
struct float8_latent {
  using storage = std::uint8_t;
  using latent = basic_float8_e4m3<token_scale>;
  using rotated = bfloat16;
  static constexpr bool scaled = true;
  static constexpr std::string_view name = "float8_latent";
  static constexpr auto packed = packed_token{
      .latent_dim = 512, .part_dim = 128, .rotated_dim = 64, .scale_offset = 512, .rotated_offset = 528, .bytes = 656};

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float scale_for(float absmax) noexcept {
    return latent::scale_for(absmax);
  }

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr storage encode(float number, float scale) noexcept {
    return latent::encode(number, scale);
  }

  [[nodiscard]] PAGEDKV_HOST_DEVICE static constexpr float decode(storage stored, float scale) noexcept {
    return latent::decode(stored, scale);
  }
};

static_assert(element<float8_latent> && packs_tokens<float8_latent>);

}  // namespace pagedkv
