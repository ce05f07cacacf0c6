#include "cache_world.hpp"

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using one_group_world = cache_world<one_group_cache>;

}  // namespace

TEST_CASE("each operation of a cache survives each fault", "[faults]") {
  CHECK(inject_faults(operations_of_caches<one_group_world>()) > 10);
  constexpr auto others = std::array{faulty_operation<one_group_world>{
      "drop before", [](one_group_world& w) { return error_of(w.cache.drop_before(w.first, 8)); }}};
  inject_faults(others);
}

TEST_CASE("the construction of a cache survives each fault", "[faults]") {
  CHECK(inject_into_construction(one_group_cache::make) > 5);
}
