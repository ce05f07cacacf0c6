#include "../support/cache_fixture.hpp"
#include "../support/policy_matrix.hpp"

#include <pagedkv/events/event_queues.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>

#include <algorithm>
#include <atomic>
#include <random>
#include <span>
#include <thread>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

template <class Locking>
using cache_under = kv_cache<float32, Locking, clock_sweep>;

using concurrent_lockings = policy_list<rw_lock, basic_sharded_mutex<3>, lock_free>;

}  // namespace

TEMPLATE_LIST_TEST_CASE("an invalidated prefix is freed at once, and found no more", "[cache][invalidate]",
                        all_lockings) {
  auto cache = cache_under<TestType>{small_cache(16)};
  release_all(cache, {create_committed(cache, text(0, 12)), create_committed(cache, text(100, 8))});
  CHECK(cache.invalidate_prefix(text(0, 9)) == 2);
  check_sound(cache);
  CHECK(num_cached(cache, text(0, 12)) == 0);
  CHECK(num_cached(cache, text(100, 8)) == 8);
  CHECK(cache.num_free_blocks() == 13);  // the third block of the text is out of reach, and waits for its eviction
  CHECK(cache.invalidate_prefix(text(0, 9)) == 0);
  CHECK(cache.statistics().evictions == 0);

  release_all(cache, {create_committed(cache, text(0, 8))});  // cached anew, apart from what continued the old one
  CHECK(num_cached(cache, text(0, 12)) == 8);
  release_all(cache, {cache.create_sequence(text(200, 64)).value().id});
}

TEMPLATE_LIST_TEST_CASE("invalidated blocks in use stay with their users until the last one releases them",
                        "[cache][invalidate]", all_lockings) {
  auto cache = cache_under<TestType>{small_cache(16)};
  const auto id = create_committed(cache, text(0, 10));
  const auto sharer = cache.create_sequence(text(0, 10)).value();
  CHECK(sharer.num_cached_tokens == 8);
  const auto blocks = table_of(cache, id);
  CHECK(cache.invalidate_prefix(text(0, 10)) == 2);
  check_sound(cache);
  CHECK(num_cached(cache, text(0, 10)) == 0);
  CHECK(table_of(cache, id) == blocks);
  CHECK(cache.num_free_blocks() == 12);

  // Both go on; what they publish behind invalidated blocks cannot be found.
  REQUIRE(cache.append(id, text(10, 6)));
  REQUIRE(cache.commit(id, 16));
  CHECK(num_cached(cache, text(0, 16)) == 0);
  const auto forked = cache.fork(id).value();
  check_sound(cache);
  REQUIRE(cache.release(id));
  CHECK(cache.num_available_blocks() == 16 - 5);
  REQUIRE(cache.release(sharer.id));
  check_sound(cache);
  REQUIRE(cache.truncate(forked, 7));  // a published block is never written, an invalidated one neither
  REQUIRE(cache.append(forked, token{50}));
  CHECK(cache.statistics().copies == 1);
  check_sound(cache);
  const auto num_free = cache.num_free_blocks();
  REQUIRE(cache.release(forked));
  CHECK(cache.num_free_blocks() == num_free + 2);
  check_sound(cache);
  CHECK(num_cached(cache, text(0, 4)) == 0);
}

TEMPLATE_LIST_TEST_CASE("only the chains of one salt are invalidated", "[cache][invalidate]", all_lockings) {
  auto cache = cache_under<TestType>{small_cache(32)};
  const auto in_use = create_committed(cache, text(0, 8), {.salt = salt{1}});
  const auto other = create_committed(cache, text(50, 8), {.salt = salt{1}});
  const auto kept = create_committed(cache, text(0, 8), {.salt = salt{2}});
  const auto unsalted = create_committed(cache, text(0, 8));
  REQUIRE(cache.release(other));
  CHECK(cache.invalidate_salt(salt{1}) == 2);
  check_sound(cache);
  CHECK(num_cached(cache, text(0, 8), salt{1}) == 0);
  CHECK(num_cached(cache, text(50, 8), salt{1}) == 0);
  CHECK(num_cached(cache, text(0, 8), salt{2}) == 8);
  CHECK(num_cached(cache, text(0, 8)) == 8);
  CHECK(cache.invalidate_salt(salt{1}) == 0);
  CHECK(cache.invalidate_salt(salt{3}) == 0);
  release_all(cache, {in_use, kept, unsalted});
}

TEMPLATE_LIST_TEST_CASE("chosen blocks are invalidated, their twins are not", "[cache][invalidate]", all_lockings) {
  auto cache = cache_under<TestType>{small_cache(16)};
  const auto first = cache.create_sequence(text(0, 8)).value().id;
  const auto second = cache.create_sequence(text(0, 8)).value().id;
  REQUIRE(cache.commit(first, 8));
  REQUIRE(cache.commit(second, 8));
  const auto blocks = table_of(cache, first);
  const auto outside = std::vector{blocks[0], block_id{16}};
  CHECK(cache.invalidate_blocks(outside).error().code == error_code::invalid_argument);
  CHECK(num_cached(cache, text(0, 8)) == 8);
  const auto chosen = std::vector{blocks[0], blocks[0]};
  CHECK(cache.invalidate_blocks(chosen).value() >= 1);
  CHECK(num_cached(cache, text(0, 8)) == 8);  // through the twin
  CHECK(cache.invalidate_blocks(table_of(cache, second)).value() == 2);
  CHECK(num_cached(cache, text(0, 8)) == 0);
  check_sound(cache);
  release_all(cache, {first, second});
  CHECK(cache.num_free_blocks() == 16 - 1);
}

TEMPLATE_LIST_TEST_CASE("an invalidated block waits for the step that may read it", "[cache][invalidate]",
                        all_lockings) {
  auto cache = cache_under<TestType>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 8));
  const auto late = create_committed(cache, text(100, 8));
  const auto step = cache.begin_step().value();
  REQUIRE(cache.release(id));
  CHECK(cache.invalidate_prefix(text(0, 8)) == 2);     // retiring
  CHECK(cache.invalidate_prefix(text(100, 8)) == 2);  // in use
  REQUIRE(cache.release(late));
  CHECK(cache.statistics().blocks == block_counts{.free = 4, .in_use = 0, .evictable = 0, .retiring = 4});
  check_sound(cache);
  REQUIRE(cache.retire_step(step));
  CHECK(cache.num_free_blocks() == 8);
  check_sound(cache);
}

TEST_CASE("compaction moves invalidated blocks with their users", "[cache][invalidate][random]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto below = cache.create_sequence(text(50, 8)).value().id;
  const auto id = create_committed(cache, text(0, 8));
  CHECK(cache.invalidate_prefix(text(0, 4)) == 1);
  REQUIRE(cache.release(below));
  REQUIRE_FALSE(cache.compact().value().empty());
  check_sound(cache);
  CHECK(num_cached(cache, text(0, 8)) == 0);
  release_all(cache, {id});
  CHECK(cache.num_free_blocks() == 7);
}

TEMPLATE_LIST_TEST_CASE("all pins end at once", "[cache][pin]", all_lockings) {
  auto cache = cache_under<TestType>{small_cache(16)};
  CHECK(cache.unpin_all() == 0);
  release_all(cache, {create_committed(cache, text(0, 8)), create_committed(cache, text(50, 4))});
  const auto first = cache.pin(text(0, 8)).value().id;
  const auto second = cache.pin(text(50, 4)).value().id;
  CHECK(cache.statistics().blocks.in_use == 3);
  CHECK(cache.unpin_all() == 2);
  CHECK(cache.unpin(first).error().code == error_code::unknown_pin);
  CHECK(cache.unpin(second).error().code == error_code::unknown_pin);
  CHECK(cache.statistics().blocks.in_use == 0);
  CHECK(cache.pin(text(0, 8))->num_tokens == 8);
  CHECK(cache.unpin_all() == 1);
  check_sound(cache);
}

/// While one thread invalidates, others hit, release, evict, and are refused. Nothing is committed meanwhile, so what
/// was invalidated stays out of reach.
TEMPLATE_LIST_TEST_CASE("what was invalidated is never found again while other threads are at work",
                        "[cache][invalidate][threads][random]", concurrent_lockings) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  auto cache = cache_under<TestType>{small_cache(24)};
  auto wrong = std::atomic{0};
  for (auto round = 0; round < 60; ++round) {
    for (const auto first : {0, 100, 200}) {
      if (const auto made = cache.create_sequence(text(first, 16)); made) {
        static_cast<void>(cache.commit(made->id, 16));
        static_cast<void>(cache.release(made->id));
      }
    }
    auto invalidated = std::atomic{false};
    const auto work = [&](unsigned own_seed) {
      auto own = std::mt19937{own_seed};
      for (auto i = 0; i < 60; ++i) {
        const bool gone = invalidated.load();
        const auto size = own() % 24 + 1;  // many are refused, with victims in hand
        const auto made = cache.create_sequence(own() % 2 == 0 ? text(0, size) : text(1000, 4 * size));
        if (made) {
          wrong += gone && cache.find_prefix(text(0, 16)) != 0;
          static_cast<void>(cache.release(made->id));
        }
        wrong += gone && cache.find_prefix(text(0, 17)) != 0;
      }
    };
    {
      auto first = std::jthread{work, random()};
      auto second = std::jthread{work, random()};
      const auto count = round % 2 == 0 ? cache.invalidate_prefix(text(0, 16)) : cache.invalidate_salt(salt::none);
      wrong += count > 12;
      invalidated = true;
    }
    wrong += cache.find_prefix(text(0, 17)) != 0;
    const auto broken = cache.check_invariants();
    REQUIRE(broken == std::vector<std::string>{});
  }
  CHECK(wrong == 0);
  CHECK(cache.statistics().blocks.in_use == 0);
}
