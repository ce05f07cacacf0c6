#include "cache_kinds.hpp"

namespace pagedkv::test {

template <>
cache_kinds kinds_with<sharded_mutex>() {
  return {.matrix = matrix_with<sharded_mutex>()};
}

}  // namespace pagedkv::test
