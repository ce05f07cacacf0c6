#include <pagedkv/policy/locking/single_thread.hpp>
#include <pagedkv/pool/block_states.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace pagedkv;

TEST_CASE("a count is read again if a block was lost meanwhile, a few times", "[block_tally]") {
  auto tally = block_tally<single_thread>{};
  tally.add_evictable();
  auto num_calls = 0;
  CHECK(tally.num_evictable([&] { ++num_calls; }) == 1);
  CHECK(num_calls == 1);

  const auto lose_one = [&](int times) {
    num_calls = 0;
    return tally.num_evictable([&, times] {
      if (num_calls++ < times) {
        tally.add_evictable();
        tally.remove_evictable();
      }
    });
  };
  CHECK(lose_one(1) == 1);
  CHECK(num_calls == 2);
  CHECK(lose_one(100) == 2);  // never less than there are
  CHECK(num_calls == 4);
}
