#include "../support/cache_matrix.hpp"

template <>
std::vector<pagedkv::test::cache_kind> pagedkv::test::matrix_of<pagedkv::float16>() {
  return make_matrix<float16>();
}
