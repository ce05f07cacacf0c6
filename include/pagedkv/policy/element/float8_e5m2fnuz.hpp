#pragma once

#include <pagedkv/core/scale.hpp>
#include <pagedkv/policy/element/concept.hpp>
#include <pagedkv/policy/element/parts/float8.hpp>

#include <string_view>
#include <type_traits>

namespace pagedkv {

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

}  // namespace pagedkv
