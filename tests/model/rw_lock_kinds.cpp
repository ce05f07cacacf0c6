#include "cache_kinds.hpp"

namespace pagedkv::test {

template <>
cache_kinds kinds_with<rw_lock>() {
  return {.matrix = matrix_with<rw_lock>(),
          .runs = {make_kind_with_runs<rw_lock, lru>(), make_kind_with_runs<rw_lock, sieve>()}};
}

}  // namespace pagedkv::test
