#pragma once

#include <pagedkv/core/scale.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/element/parts/float8.hpp>

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

}  // namespace pagedkv
