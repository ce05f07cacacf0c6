#include "../support/asserts.hpp"
#include "../support/cache_fixture.hpp"

#include <catch2/catch_template_test_macros.hpp>

#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/rw_lock.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <array>
#include <cstddef>

using namespace pagedkv;
using namespace pagedkv::test;

#define CACHES (kv_cache<>), (kv_cache<rw_lock>), (kv_cache<sharded_mutex>), (kv_cache<lock_free, clock_sweep>)

TEMPLATE_TEST_CASE("ids of one cache are unknown to another", "[cache]", CACHES) {
  auto mine = TestType{small_cache(8)};
  auto other = TestType{small_cache(8)};
  const auto id = create_committed(mine, text(0, 8));
  const auto same_place = create_committed(other, text(0, 8));
  const auto pinned = mine.pin(text(0, 8)).value().id;
  REQUIRE(other.pin(text(0, 8)));
  const auto unknown = [](const auto& outcome) {
    return !outcome && outcome.error().code == error_code::unknown_sequence;
  };
  auto slots = std::array<slot, 1>{};
  CHECK(unknown(other.append(id, token{1})));
  CHECK(unknown(other.append(id, text(8, 4))));
  CHECK(unknown(other.commit(id, 8)));
  CHECK(unknown(other.fork(id)));
  CHECK(unknown(other.truncate(id, 1)));
  CHECK(unknown(other.drop_before(id, 4)));
  CHECK(unknown(other.describe(id)));
  CHECK(unknown(other.slot_mapping(id, 0, slots)));
  CHECK(unknown(other.release(id)));
  CHECK(other.block_table(pinned, {}).error().code == error_code::unknown_pin);
  CHECK(other.unpin(pinned).error().code == error_code::unknown_pin);
  CHECK(other.describe(same_place)->num_tokens == 8);
  CHECK(mine.release(id));
  CHECK(mine.unpin(pinned));
}

#ifndef NDEBUG

TEMPLATE_TEST_CASE("a debug build asserts that a sequence holds the written blocks", "[cache]", CACHES) {
  auto cache = TestType{small_cache(8)};
  const auto numbers = std::array<float, 2>{};
  const auto writes = [&](slot s) {
    return [&, s] {
      const auto rows = contiguous_rows(numbers, 1, 2);
      static_cast<void>(cache.write(0, std::array{s}, rows, rows));
    };
  };
  const auto id = cache.create_sequence(text(0, 6)).value().id;
  auto slots = std::array<slot, 6>{};
  REQUIRE(cache.slot_mapping(id, 0, slots));
  const auto full = slots[3];
  const auto partial = slots[4];
  REQUIRE(cache.commit(id, 6));  // which may come before the kernels
  CHECK_FALSE(testing::asserts(writes(full)));
  CHECK_FALSE(testing::asserts(writes(partial)));
  CHECK_FALSE(testing::asserts(writes(skip_slot)));
  CHECK_FALSE(testing::asserts(writes(slot{1'000'000})));  // an error instead
  const auto step = cache.begin_step().value();
  REQUIRE(cache.release(id));
  CHECK_FALSE(testing::asserts(writes(full)));  // the step may not have come to it yet
  CHECK_FALSE(testing::asserts(writes(partial)));
  REQUIRE(cache.retire_step(step));
  CHECK(testing::asserts(writes(full)));     // evictable
  CHECK(testing::asserts(writes(partial)));  // free
  REQUIRE(cache.resize(5));
  CHECK(testing::asserts(writes(slot{7 * 4})));  // outside of the pool now, in the storage still
}

#endif
