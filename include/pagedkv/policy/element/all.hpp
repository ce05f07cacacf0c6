#pragma once

#include <pagedkv/policy/axis.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/int8.hpp>

namespace pagedkv {

/// Every element, once: for programs whose users choose one, and for what runs over all of them.
using all_elements = policy_list<float16, bfloat16, float32, int8>;

}  // namespace pagedkv
