#include "../support/cache_matrix.hpp"

template <>
std::vector<pagedkv::test::cache_kind> pagedkv::test::matrix_part<3>() {
  return make_matrix_part<3>();
}
