#pragma once

#include <pagedkv/core/scale.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/element/parts/float8.hpp>

#include <string_view>
#include <type_traits>

namespace pagedkv {

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

}  // namespace pagedkv
