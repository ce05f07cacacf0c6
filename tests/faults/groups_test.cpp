#include "cache_world.hpp"

#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_template_test_macros.hpp>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using unlocked_groups = cache_of_groups<>;
using sharded_groups = cache_of_groups<basic_sharded_mutex<3>>;

}  // namespace

TEMPLATE_TEST_CASE("each operation of a cache with groups survives each fault", "[faults]", unlocked_groups,
                   sharded_groups) {
  using world = cache_world<TestType>;
  using operation = faulty_operation<world>;
  CHECK(inject_faults(operations_of_caches<world>()) > 10);
  CHECK(inject_faults(queries_of_caches<world>()) > 2);
  constexpr auto others = std::array{
      without_faults(operation{"drop_behind_windows and a commit",
                               [](world& w) {
                                 const auto dropped = w.cache.drop_behind_windows(w.third, 10);
                                 return dropped ? error_of(w.cache.commit(w.third, 10))
                                                : std::optional<error>{dropped.error()};
                               }}),
      without_faults(
          operation{"next_saved_length", [](world& w) { return error_of(w.cache.next_saved_length(w.third)); }}),
      without_faults(
          operation{"num_skipped_tokens", [](world& w) { return error_of(w.cache.num_skipped_tokens(w.first, 1)); }}),
  };
  inject_faults(others);
}

TEMPLATE_TEST_CASE("the construction of a cache with groups survives each fault", "[faults]", unlocked_groups,
                   sharded_groups) {
  CHECK(inject_into_construction(TestType::make) > 5);
}
