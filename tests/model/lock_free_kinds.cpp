#include "../support/small_granules.hpp"
#include "cache_kinds.hpp"

namespace pagedkv::test {

template <>
cache_kinds kinds_with<lock_free>() {
  return {.matrix = matrix_with<lock_free>(),
          .beside_arrays = {make_kind_beside_arrays<lock_free, clock_sweep>()},
          .granules = {make_kind<float32, lock_free, clock_sweep, nhd_block_major, small_granules>()}};
}

}  // namespace pagedkv::test
