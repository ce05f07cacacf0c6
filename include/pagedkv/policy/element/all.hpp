#pragma once

#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/float8.hpp>
#include <pagedkv/policy/element/int8.hpp>

namespace pagedkv {

/// Every element, once: for programs whose users choose one, and for what runs over all of them. Of the 8-bit
/// floating-point formats one stands for all, since they differ in their conversions alone: `float8_e5m2`,
/// `float8_e4m3fnuz` and `float8_e5m2fnuz` are left out, and so is `float8_latent`, which stores latent groups only.
using all_elements = policy_list<float16, bfloat16, float32, int8, float8_e4m3>;

}  // namespace pagedkv
