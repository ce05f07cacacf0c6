// Operations that must succeed, and the state after a refusal, while other threads are at work.

#include "../support/pairs_of_tokens.hpp"
#include "../support/printing.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/eviction/priority.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

using lock_free_cache = kv_cache<float32, lock_free, clock_sweep>;
using sharded_cache = kv_cache<float32, sharded_mutex>;
using caches = std::tuple<lock_free_cache, sharded_cache>;

TEMPLATE_LIST_TEST_CASE("a prompt is not refused because others hold its prefix for a moment", "[refusals]", caches) {
  auto cache = TestType{pairs_of_tokens(2)};
  cache_prompt(cache, 1, 2);
  auto stop = std::atomic{false};
  auto pins = std::jthread{[&] {
    while (!stop) {
      if (const auto pinned = cache.pin(std::array<token, 2>{1, 2})) {
        static_cast<void>(cache.unpin(pinned->id));
      }
    }
  }};
  auto refused = 0;
  for (auto i = 0; i < 20'000; ++i) {
    const auto made = cache.create_sequence(std::array<token, 3>{1, 2, 3});
    refused += !made;
    if (made) {
      static_cast<void>(cache.release(made->id));
    }
  }
  stop = true;
  pins.join();
  CHECK(refused == 0);
  CHECK(cache.check_invariants() == std::vector<std::string>{});
}

TEMPLATE_LIST_TEST_CASE("a refusal never says that there was enough", "[refusals]", caches) {
  auto cache = TestType{pairs_of_tokens(2)};
  auto stop = std::atomic{false};
  auto others = std::jthread{[&] {
    while (!stop) {
      if (const auto made = cache.create_sequence(std::array<token, 4>{1, 2, 3, 4})) {
        static_cast<void>(cache.release(made->id));
      }
    }
  }};
  auto num_refused = 0;
  auto num_wrong = 0;
  for (auto i = 0; i < 20'000 || num_refused == 0; ++i) {
    const auto made = cache.create_sequence(std::array<token, 1>{5});
    if (made) {
      static_cast<void>(cache.release(made->id));
    } else {
      ++num_refused;
      num_wrong += made.error().code != error_code::capacity_exhausted || made.error().limit >= made.error().value;
    }
  }
  stop = true;
  others.join();
  CHECK(num_wrong == 0);
}

TEMPLATE_LIST_TEST_CASE("a cache is not reset while a sequence holds a block, whatever others do", "[refusals]",
                        caches) {
  auto cache = TestType{pairs_of_tokens(8)};
  const auto held = cache.create_sequence(std::array<token, 1>{9}).value().id;
  auto stop = std::atomic{false};
  auto others = std::jthread{[&] {
    while (!stop) {
      cache_prompt(cache, 1, 2);
    }
  }};
  auto num_reset = 0;
  auto num_wrong = 0;
  for (auto i = 0; i < 20'000; ++i) {
    const auto counts = cache.statistics().blocks;
    num_wrong += counts.free < 0 || counts.in_use < 0 || counts.evictable < 0 || counts.retiring < 0;
    num_wrong += counts.free + counts.in_use + counts.evictable + counts.retiring != 8;
    num_reset += cache.reset_prefix_cache().has_value();
  }
  stop = true;
  others.join();
  CHECK(num_wrong == 0);
  CHECK(num_reset == 0);
  CHECK(cache.release(held));
  CHECK(cache.reset_prefix_cache());
}

TEMPLATE_TEST_CASE("a refused append leaves the order of eviction as it was", "[refusals]", rw_lock,
                   basic_sharded_mutex<1>) {
  auto cache = kv_cache<float32, TestType, priority>{pairs_of_tokens(3)};
  cache_prompt(cache, 1, 2, 100);
  cache_prompt(cache, 3, 4, 0);
  const auto id = cache.create_sequence(std::array<token, 1>{5}).value().id;
  CHECK(cache.append(id, std::array<token, 7>{6, 7, 8, 9, 10, 11, 12}).has_error());
  cache_prompt(cache, 7, 8, 50);
  REQUIRE(cache.append(id, std::array<token, 2>{6, 6}));
  CHECK(cache.find_prefix(std::array<token, 3>{1, 2, 0}) == 2);
  CHECK(cache.find_prefix(std::array<token, 3>{7, 8, 0}) == 0);
}

TEST_CASE("a stale id does not make the sequence busy that has its entry", "[refusals]") {
  auto config = pairs_of_tokens(4);
  config.max_sequences = 1;
  auto cache = lock_free_cache{config};
  const auto stale = cache.create_sequence(std::array<token, 1>{1}).value().id;
  REQUIRE(cache.release(stale));
  const auto id = cache.create_sequence(std::array<token, 1>{1}).value().id;
  auto stop = std::atomic{false};
  auto late = std::jthread{[&] {
    while (!stop) {
      static_cast<void>(cache.describe(stale));
    }
  }};
  auto refused = 0;
  for (auto i = 0; i < 50'000; ++i) {
    refused += cache.truncate(id, 1).has_error();
  }
  stop = true;
  late.join();
  CHECK(refused == 0);
}

}  // namespace
