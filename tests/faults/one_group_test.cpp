#include "cache_world.hpp"

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using world = cache_world<one_group_cache>;

}  // namespace

TEST_CASE("each operation of a cache survives each fault", "[faults]") {
  CHECK(inject_faults(operations_of_caches<world>()) > 10);
  constexpr auto others = std::array{
      faulty_operation<world>{"drop before", [](world& w) { return error_of(w.cache.drop_before(w.first, 8)); }}};
  inject_faults(others);
}

TEST_CASE("the construction of a cache survives each fault", "[faults]") {
  CHECK(inject_into_construction(one_group_cache::make) > 5);
}
