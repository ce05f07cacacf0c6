#pragma once

#include <pagedkv/policy/layout/concept.hpp>

namespace pagedkv {

/// One token's heads lie together, and one layer's blocks do.
struct nhd_layer_major {
  static constexpr auto dimensions = dimension_order::nhd;
  static constexpr auto storage = storage_order::layer_major;
};

static_assert(memory_layout<nhd_layer_major>);

}  // namespace pagedkv
