#include "cache_world.hpp"

#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_template_test_macros.hpp>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using unlocked_cache = one_group_cache;
using locked_cache = cache_of_one_group<rw_lock>;
using sharded_cache = cache_of_one_group<basic_sharded_mutex<3>>;
using lock_free_cache = cache_of_one_group<lock_free, clock_sweep>;

}  // namespace

TEMPLATE_TEST_CASE("each operation of a cache survives each fault", "[faults]", unlocked_cache, locked_cache,
                   sharded_cache, lock_free_cache) {
  using world = cache_world<TestType>;
  CHECK(inject_faults(operations_of_caches<world>()) > 10);
  CHECK(inject_faults(queries_of_caches<world>()) > 2);
  constexpr auto others = std::array{without_faults(
      faulty_operation<world>{"drop_before", [](world& w) { return error_of(w.cache.drop_before(w.first, 8)); }})};
  inject_faults(others);
}

TEMPLATE_TEST_CASE("the construction of a cache survives each fault", "[faults]", unlocked_cache, locked_cache,
                   sharded_cache, lock_free_cache) {
  CHECK(inject_into_construction(TestType::make) > 5);
}
