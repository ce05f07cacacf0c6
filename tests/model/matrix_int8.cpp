#include "../support/cache_matrix.hpp"

template <>
std::vector<pagedkv::test::cache_kind> pagedkv::test::matrix_of<pagedkv::int8>() {
  return make_matrix<int8>();
}
