#pragma once

#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>

#include <type_traits>

namespace pagedkv::hip {

/// The number types that attention kernels support: those of queries and outputs, and those that matrix instructions
/// multiply.
struct attention_numbers {
  using single = float32;
  using half = float16;
  using brain = bfloat16;

  /// Numbers of eight bits, int8 included, are exact in binary16.
  template <class Element>
  using of_products = std::conditional_t<std::is_same_v<Element, bfloat16>, bfloat16, float16>;
};

}  // namespace pagedkv::hip
