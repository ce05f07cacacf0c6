#pragma once

#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>

#include <type_traits>

namespace pagedkv::hip {

/// The numbers that attention kernels know: those of queries and outputs, and those that matrix instructions multiply.
struct attention_numbers {
  using single = float32;
  using half = float16;
  using brain = bfloat16;

  /// int8 is exact in binary16, and so are others of eight bits.
  template <class Element>
  using of_products = std::conditional_t<std::is_same_v<Element, bfloat16>, bfloat16, float16>;
};

}  // namespace pagedkv::hip
