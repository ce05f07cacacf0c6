// Operations that must succeed, and the state after a refusal, while other threads are at work.

#include "../support/printing.hpp"
#include "../support/scheduled_policies.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/eviction/priority.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <tuple>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

using lock_free_cache = kv_cache<float32, lock_free, clock_sweep>;
using sharded_cache = kv_cache<float32, sharded_mutex>;
using caches = std::tuple<lock_free_cache, sharded_cache>;

cache_config pairs_of_tokens(std::int32_t num_blocks) {
  auto config = cache_config{};
  config.head_dim = 1;
  config.block_size = 2;
  config.num_blocks = num_blocks;
  config.max_sequences = 16;
  config.hash_seed = 1;
  return config;
}

template <class Cache>
void cache_prompt(Cache& cache, token first, token second, std::uint8_t priority = 0) {
  auto options = sequence_options{};
  options.priority = priority;
  const auto id = cache.create_sequence(std::array{first, second}, options).value().id;
  cache.commit(id, 2).value();  // threads call this, and Catch2's assertions are for one
  cache.release(id).value();
}

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

/// The prompt fits at all times: another thread holds only its prefix, or blocks that it does not need.
template <class Cache>
void prompt_meets_its_prefix(execution& e) {
  auto cache = Cache{pairs_of_tokens(2)};
  cache_prompt(cache, 1, 2);
  e.spawn([&] {
    for (auto i = 0; i < 2; ++i) {
      const auto pinned = cache.pin(std::array<token, 2>{1, 2});
      e.expect(pinned.has_value() && cache.unpin(pinned->id), "cannot pin, or unpin");
    }
  });
  e.spawn(
      [&] { e.expect(cache.create_sequence(std::array<token, 3>{1, 2, 3}).has_value(), "refused though it fits"); });
  e.run();
}

/// A block that another thread has released is available at once, with or without a prefix.
template <class Cache>
void prompt_follows_a_release(execution& e) {
  auto cache = Cache{pairs_of_tokens(3)};
  cache_prompt(cache, 1, 2);
  const auto made = cache.create_sequence(std::array<token, 4>{5, 6, 7, 8}).value().id;
  e.expect(cache.commit(made, 4).has_value(), "cannot commit");
  auto released = scheduled<bool>{false};
  e.spawn([&] {
    e.expect(cache.release(made).has_value(), "cannot release");
    released.store(true, std::memory_order_release);
  });
  e.spawn([&] {
    const auto fits = released.load(std::memory_order_acquire);
    const auto created = cache.create_sequence(std::array<token, 5>{1, 2, 3, 4, 5});
    e.expect(!fits || created.has_value(), "refused though it fits");
  });
  e.run();
}

TEST_CASE("a prompt that fits is not refused under any schedule of two threads", "[refusals][scheduler][random]") {
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  using scheduled_lock_free_cache = kv_cache<float32, stepwise_lock_free<>, basic_clock_sweep<1, scheduled>>;
  using scheduled_sharded_cache = kv_cache<float32, scheduled_sharded_mutex>;
  for (const auto body :
       {prompt_meets_its_prefix<scheduled_lock_free_cache>, prompt_meets_its_prefix<scheduled_sharded_cache>,
        prompt_follows_a_release<scheduled_lock_free_cache>, prompt_follows_a_release<scheduled_sharded_cache>}) {
    const auto found = explorer{{.preemptions = 2}}.exhaustive(body);
    CAPTURE(found.failure, found.schedule, found.schedules);
    CHECK(found.failure.empty());
    CHECK(found.complete);
    const auto random = explorer{{.preemptions = 6, .surprises = 2}}.random(body, seed, 5'000);
    CAPTURE(seed, random.failure, random.schedule);
    CHECK(random.failure.empty());
  }
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

/// An update collects the rows of a batch first, and copies them later.
void update_races_truncate(execution& e) {
  auto cache = kv_cache<float32, scheduled_sharded_mutex>{pairs_of_tokens(6)};
  const auto id = cache.create_sequence(std::array<token, 3>{1, 2, 3}).value().id;
  e.spawn([&] {
    auto batch = compressed_batch{1, 8};
    e.expect(cache.update(batch, std::array{id}).has_value(), "a batch is refused where it should wait");
  });
  e.spawn([&] { e.expect(cache.truncate(id, 1).has_value(), "cannot truncate"); });
  e.run();
}

TEST_CASE("under mutexes a batch waits for a sequence that changes", "[refusals][scheduler]") {
  const auto found = explorer{{.preemptions = 3}}.exhaustive(update_races_truncate);
  CAPTURE(found.failure, found.schedule);
  CHECK(found.failure.empty());
  CHECK(found.complete);
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

/// One entry, which each thread takes and releases.
void too_many_sequences(execution& e) {
  auto config = pairs_of_tokens(4);
  config.max_sequences = 1;
  auto cache = kv_cache<float32, scheduled_lock_free<>, basic_clock_sweep<1, scheduled>>{config};
  for (auto thread = 0; thread < 2; ++thread) {
    e.spawn([&] {
      const auto made = cache.create_sequence({});
      if (made) {
        e.expect(cache.release(made->id).has_value(), "a sequence cannot be released");
      } else {
        e.expect(made.error().code == error_code::limit_reached, "refused for another reason");
      }
    });
  }
  e.run();
}

TEST_CASE("a sequence beyond the limit is refused as such, also when another ends meanwhile", "[refusals][scheduler]") {
  const auto found = explorer{{.preemptions = 1}}.exhaustive(too_many_sequences);
  CAPTURE(found.failure, found.schedule, found.schedules);
  CHECK(found.failure.empty());
  CHECK(found.complete);
}

}  // namespace
