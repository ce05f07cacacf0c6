#pragma once

#include <pagedkv/policy/layout/concept.hpp>

namespace pagedkv {

/// One head's tokens lie together, and one layer's blocks do.
struct hnd_layer_major {
  static constexpr auto dimensions = dimension_order::hnd;
  static constexpr auto storage = storage_order::layer_major;
};

static_assert(memory_layout<hnd_layer_major>);

}  // namespace pagedkv
