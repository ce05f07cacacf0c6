#include "../support/cache_fixture.hpp"
#include "../support/offering_none.hpp"
#include "../support/recording_backend.hpp"
#include "../support/small_granules.hpp"

#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/policy/allocator/page_allocators.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/free_list/all.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

template <class... Policies>
using resized_cache = kv_cache<float32, reserving_allocator, Policies...>;

[[nodiscard]] cache_config growing_cache(std::int32_t num_blocks, std::int32_t max_blocks) {
  auto config = small_cache(num_blocks);
  config.max_blocks = max_blocks;
  return config;
}

/// Has memory for the first call.
struct mapped_once : small_granules {
  bool first = true;

  [[nodiscard]] bool map(std::byte*, std::size_t) noexcept { return std::exchange(first, false); }
};

/// Writes the numbers of these tokens to a sequence's slots, or compares them.
template <class Cache>
void write_rows(Cache& cache, sequence_id id, const tokens& of) {
  auto slots = std::vector<slot>(of.size());
  REQUIRE(cache.slot_mapping(id, 0, slots));
  auto numbers = std::vector<float>{};
  for (const auto each : of) {
    numbers.insert(numbers.end(), {static_cast<float>(each), -static_cast<float>(each)});
  }
  REQUIRE(cache.write(0, slots, contiguous_rows(numbers, 1, 2), contiguous_rows(numbers, 1, 2)));
}
template <class Cache>
[[nodiscard]] bool holds_rows(Cache& cache, sequence_id id, const tokens& of) {
  auto slots = std::vector<slot>(of.size());
  REQUIRE(cache.slot_mapping(id, 0, slots));
  auto keys = std::vector<float>(2 * of.size());
  auto values = keys;
  REQUIRE(cache.read(0, slots, contiguous_rows(keys, 1, 2), contiguous_rows(values, 1, 2)));
  auto all = true;
  for (std::size_t i = 0; i < of.size(); ++i) {
    const auto number = static_cast<float>(of[i]);
    all = all && keys[2 * i] == number && values[2 * i + 1] == -number;
  }
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("a pool grows to its capacity and shrinks to what is in use", "[cache][resize]",
                   (resized_cache<single_thread>), (resized_cache<rw_lock>), (resized_cache<sharded_mutex>),
                   (resized_cache<lock_free, clock_sweep>), (kv_cache<float32>)) {
  auto cache = TestType{growing_cache(4, 40)};
  const auto view = cache.view();
  CHECK(cache.num_blocks() == 4);
  const auto first = create_committed(cache, text(0, 16));
  write_rows(cache, first, text(0, 16));
  CHECK(cache.create_sequence(text(100, 17)).error().code == error_code::never_fits);
  CHECK(cache.create_sequence(text(100, 4)).error().code == error_code::capacity_exhausted);
  REQUIRE(cache.resize(40));
  CHECK(cache.num_blocks() == 40);
  CHECK(cache.statistics().blocks == block_counts{.free = 36, .in_use = 4});
  const auto second = create_committed(cache, text(100, 100));
  write_rows(cache, second, text(100, 100));
  check_sound(cache);

  const auto refused = cache.resize(28);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::in_use);
  CHECK(cache.num_blocks() == 40);
  CHECK(cache.statistics().blocks == block_counts{.free = 11, .in_use = 29});
  REQUIRE(cache.compact());
  REQUIRE(cache.resize(29));
  CHECK(cache.view().base == view.base);
  CHECK(cache.view().layer_stride == view.layer_stride);
  CHECK(holds_rows(cache, first, text(0, 16)));
  CHECK(holds_rows(cache, second, text(100, 100)));
  CHECK(cache.append(second, 7).error().code == error_code::capacity_exhausted);
  check_sound(cache);
  for (const auto wrong : {0, -1, 41}) {
    CHECK(cache.resize(wrong).error().code == error_code::invalid_argument);
  }
  release_all(cache, {first, second});
  REQUIRE(cache.resize(1));
  REQUIRE(cache.resize(40));
  CHECK(cache.statistics().blocks.free >= 39);
  check_sound(cache);
}

TEMPLATE_TEST_CASE("shrinking moves the blocks that are in the way", "[cache][resize]", (resized_cache<single_thread>),
                   (resized_cache<rw_lock>), (resized_cache<sharded_mutex>)) {
  auto cache = TestType{small_cache(30)};
  const auto filler = cache.create_sequence(text(100, 40)).value().id;
  const auto cached = create_committed(cache, text(0, 20));
  const auto used = create_committed(cache, text(50, 30));
  const auto pinned = cache.pin(text(0, 9)).value();
  write_rows(cache, cached, text(0, 20));
  write_rows(cache, used, text(50, 30));
  REQUIRE(cache.release(cached));
  REQUIRE(cache.release(filler));
  const auto before = cache.statistics();
  const auto moves = cache.resize(13).value();
  CHECK(moves.size() == 10);
  CHECK(cache.statistics().evictions == before.evictions);
  CHECK(cache.statistics().blocks == block_counts{.in_use = 10, .evictable = 3});
  for (const auto block : table_of(cache, used)) {
    CHECK(block < block_id{13});
  }
  CHECK(holds_rows(cache, used, text(50, 30)));
  CHECK(num_cached(cache, text(0, 20)) == 20);
  check_sound(cache);
  const auto again = cache.create_sequence(text(0, 20)).value();
  CHECK(again.num_cached_tokens == 16);
  CHECK(holds_rows(cache, again.id, text(0, 16)));
  REQUIRE(cache.unpin(pinned.id));
  release_all(cache, {used, again.id});
}

TEST_CASE("shrinking evicts what does not fit, in the policy's order, and says so", "[cache][resize]") {
  auto events = event_queues{small_cache(1).block_size};
  auto cache = kv_cache<float32, lru, event_queues>{small_cache(20), events};
  for (const auto first : {0, 100, 200, 300}) {
    release_all(cache, {create_committed(cache, text(first, 20))});
  }
  release_all(cache, {create_committed(cache, text(0, 20))});  // the first is now the last that was used
  events.drain([](const cache_event&) {});
  REQUIRE(cache.resize(10));
  auto num_evicted = 0;
  events.drain([&](const cache_event& event) { num_evicted += event.kind == event_kind::evicted; });
  CHECK(num_evicted == 10);
  CHECK(cache.statistics().evictions == 11);  // one for the repetition
  CHECK(cache.statistics().blocks == block_counts{.evictable = 10});
  CHECK(num_cached(cache, text(0, 20)) == 20);
  CHECK(num_cached(cache, text(300, 20)) == 20);
  CHECK(num_cached(cache, text(100, 20)) == 0);
  CHECK(num_cached(cache, text(200, 20)) == 0);
  check_sound(cache);
}

TEST_CASE("a policy that evicts nothing keeps its blocks while the pool shrinks", "[cache][resize]") {
  auto cache = kv_cache<float32, no_eviction>{small_cache(20)};
  const auto filler = cache.create_sequence(text(100, 20)).value().id;
  release_all(cache, {create_committed(cache, text(0, 20)), filler});
  CHECK(cache.resize(4).error().code == error_code::in_use);
  CHECK(cache.resize(5)->size() == 5);
  CHECK(num_cached(cache, text(0, 20)) == 20);
  check_sound(cache);
}

TEMPLATE_TEST_CASE("a pool shrinks by blocks that no policy offers", "[cache][resize]", single_thread, lock_free) {
  auto cache = kv_cache<float32, TestType, offering_none>{small_cache(10)};
  const auto filler = cache.create_sequence(text(100, 20)).value().id;
  const auto used = create_committed(cache, text(0, 18));
  write_rows(cache, used, text(0, 18));
  REQUIRE(cache.commit(filler, 20));
  REQUIRE(cache.release(filler));
  if constexpr (std::is_same_v<TestType, lock_free>) {
    REQUIRE(cache.compact());
  }
  CHECK(cache.resize(5));
  CHECK(cache.num_blocks() == 5);
  CHECK(holds_rows(cache, used, text(0, 18)));
  check_sound(cache);
}

TEST_CASE("blocks move while steps are open, and keep waiting for them", "[cache][resize]") {
  auto cache = kv_cache<float32, reserving_allocator>{growing_cache(12, 20)};
  const auto filler = cache.create_sequence(text(100, 16)).value().id;
  const auto used = create_committed(cache, text(0, 14));
  const auto ended = create_committed(cache, text(50, 8));
  write_rows(cache, used, text(0, 14));
  const auto step = cache.begin_step(std::array{used, ended}).value();
  REQUIRE(cache.release(ended));
  REQUIRE(cache.release(filler));
  CHECK(cache.resize(5).error().code == error_code::in_use);
  CHECK(cache.resize(6)->size() == 4);
  CHECK(cache.statistics().blocks == block_counts{.in_use = 4, .retiring = 2});
  CHECK(holds_rows(cache, used, text(0, 14)));
  check_sound(cache);
  REQUIRE(cache.truncate(used, 13));
  REQUIRE(cache.resize(7));
  REQUIRE(cache.append(used, 9));  // the step reads token 13
  CHECK(cache.statistics().copies == 1);
  REQUIRE(cache.retire_step(step));
  CHECK(cache.statistics().blocks == block_counts{.free = 1, .in_use = 4, .evictable = 2});
  check_sound(cache);
  release_all(cache, {used});
}

TEMPLATE_TEST_CASE("running requests find victims while their pool shrinks", "[cache][resize][random]",
                   (resized_cache<single_thread>), (resized_cache<rw_lock>), (resized_cache<sharded_mutex>),
                   (resized_cache<lock_free, clock_sweep>), (resized_cache<contiguous_runs>)) {
  const auto seed = GENERATE(take(3, random(0U, 0xffff'ffffU)));
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  constexpr auto smallest = 10;
  auto cache = TestType{growing_cache(60, 60)};
  auto running = std::vector<std::pair<sequence_id, tokens>>{};
  const auto end_oldest = [&] {
    REQUIRE_FALSE(running.empty());
    REQUIRE(cache.commit(running.front().first, std::ssize(running.front().second)));
    REQUIRE(cache.release(running.front().first));
    running.erase(running.begin());
  };
  auto next = token{0};
  while (cache.num_blocks() > smallest) {
    const auto prompt = text(next, 4 + random() % 20);
    next += 100;
    auto made = cache.create_sequence(prompt);
    for (; !made; made = cache.create_sequence(prompt)) {
      REQUIRE(made.error().code == error_code::capacity_exhausted);
      end_oldest();
    }
    running.emplace_back(made->id, prompt);
    for (std::size_t i = 0; i < running.size(); ++i) {
      auto& [id, of] = running[i];
      of.push_back(next++);
      if (!cache.append(id, of.back())) {
        of.pop_back();
        break;
      }
    }
    for (const auto& [id, of] : running) {
      write_rows(cache, id, of);
    }
    const auto before = cache.num_blocks();
    const auto wanted = std::max(smallest, before - static_cast<std::int32_t>(random() % 3));
    for (auto resized = cache.resize(wanted); !resized; resized = cache.resize(wanted)) {
      REQUIRE(resized.error().code == error_code::in_use);
      REQUIRE(cache.num_blocks() == before);
      end_oldest();
    }
    REQUIRE(cache.num_blocks() == wanted);
    for (const auto& [id, of] : running) {
      REQUIRE(holds_rows(cache, id, of));
    }
    check_sound(cache);
  }
  CHECK(cache.statistics().evictions > 40);
  while (!running.empty()) {
    end_oldest();
  }
  CHECK(cache.statistics().blocks.in_use == 0);
  check_sound(cache);
}

TEST_CASE("without a lock, cached blocks beyond the size go, and blocks in use stay", "[cache][resize]") {
  auto cache = kv_cache<float32, lock_free, clock_sweep>{small_cache(20)};
  const auto first = create_committed(cache, text(0, 20));
  const auto second = create_committed(cache, text(100, 20));
  const auto third = create_committed(cache, text(200, 20));
  REQUIRE(cache.release(first));
  REQUIRE(cache.release(third));
  const auto refused = cache.resize(9);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::in_use);
  CHECK(refused.error().value == 1);
  CHECK(cache.statistics().blocks == block_counts{.free = 5, .in_use = 5, .evictable = 10});
  CHECK(num_cached(cache, text(200, 20)) == 20);
  check_sound(cache);
  CHECK(cache.resize(11)->empty());
  CHECK(cache.statistics().blocks == block_counts{.in_use = 5, .evictable = 6});
  CHECK(num_cached(cache, text(0, 20)) == 20);
  CHECK(num_cached(cache, text(200, 20)) == 4);
  CHECK(cache.statistics().evictions == 4);
  check_sound(cache);
  release_all(cache, {second});
}

TEST_CASE("without a lock, compaction gathers the blocks in use below cached ones", "[cache][resize]") {
  auto cache = kv_cache<float32, lock_free, clock_sweep>{small_cache(10)};
  const auto cached = create_committed(cache, text(0, 16));
  const auto used = create_committed(cache, text(100, 16));
  write_rows(cache, used, text(100, 16));
  REQUIRE(cache.release(cached));
  CHECK(cache.resize(4).error().code == error_code::in_use);
  const auto moves = cache.compact().value();
  CHECK(cache.compact()->empty());
  CHECK(num_cached(cache, text(0, 16)) == 16);
  for (const auto block : table_of(cache, used)) {
    CHECK(static_cast<std::int32_t>(block) < 4);
  }
  auto named = std::set<std::int32_t>{};
  for (const auto& move : moves) {
    CHECK(named.insert(move.source).second);
  }
  check_sound(cache);
  CHECK(cache.resize(4)->empty());
  CHECK(cache.statistics().blocks == block_counts{.in_use = 4});
  CHECK(holds_rows(cache, used, text(100, 16)));
  release_all(cache, {used});
}

TEMPLATE_TEST_CASE("a pool without a free block shrinks to the blocks in use", "[cache][resize]",
                   (kv_cache<float32, event_queues>), (kv_cache<float32, rw_lock, event_queues>),
                   (kv_cache<float32, sharded_mutex, event_queues>),
                   (kv_cache<float32, lock_free, clock_sweep, event_queues>)) {
  auto events = event_queues{small_cache(1).block_size};
  auto cache = TestType{small_cache(8), events};
  for (auto i = 0; i < 3; ++i) {
    REQUIRE(cache.release(create_committed(cache, text(100 * i, 8))));
  }
  const auto used = create_committed(cache, text(500, 8));
  write_rows(cache, used, text(500, 8));
  REQUIRE(cache.statistics().blocks == block_counts{.in_use = 2, .evictable = 6});
  const auto num_reported = [&] {
    auto num = 0;
    events.drain([&](const cache_event& event) { num += event.kind == event_kind::evicted; });
    return num;
  };
  REQUIRE(num_reported() == 0);

  const auto gathers = std::is_same_v<typename TestType::locking_type, lock_free>;  // the others move in `resize`
  const auto moves = cache.compact().value();
  CHECK(moves.empty() == !gathers);
  CHECK(cache.statistics().evictions == (gathers ? 1 : 0));
  CHECK(num_reported() == (gathers ? 1 : 0));
  CHECK(cache.statistics().blocks == block_counts{.free = gathers, .in_use = 2, .evictable = 6 - gathers});
  CHECK(cache.compact()->empty());
  CHECK(holds_rows(cache, used, text(500, 8)));
  check_sound(cache);

  REQUIRE(cache.resize(3));
  CHECK(cache.statistics().blocks == block_counts{.in_use = 2, .evictable = 1});
  CHECK(cache.statistics().evictions == 5);
  CHECK(num_reported() == 5 - gathers);
  CHECK(holds_rows(cache, used, text(500, 8)));
  check_sound(cache);
  CHECK(cache.compact()->empty());
  REQUIRE(cache.resize(2));
  CHECK(cache.compact()->empty());
  release_all(cache, {used});
}

TEST_CASE("a compaction evicts nothing where it need not or may not", "[cache][resize]") {
  auto below = kv_cache<float32, lock_free, clock_sweep>{small_cache(4)};
  const auto used = create_committed(below, text(0, 8));
  REQUIRE(below.compact());
  REQUIRE(below.release(create_committed(below, text(100, 8))));
  CHECK(below.compact()->empty());
  CHECK(below.statistics().blocks == block_counts{.in_use = 2, .evictable = 2});
  release_all(below, {used});

  auto keeping = kv_cache<float32, lock_free, no_eviction>{small_cache(4)};
  REQUIRE(keeping.release(create_committed(keeping, text(100, 12))));
  const auto last = create_committed(keeping, text(0, 4));
  CHECK(keeping.compact()->empty());
  CHECK(keeping.statistics().blocks == block_counts{.in_use = 1, .evictable = 3});
  CHECK(keeping.resize(3).error().code == error_code::in_use);
  check_sound(keeping);
  release_all(keeping, {last});
}

TEST_CASE("a change of size that fails in the backend or the allocator leaves the size", "[cache][resize]") {
  auto log = recording_backend::log{};
  auto cache = kv_cache<float32, recording_backend, small_granules>{small_cache(20), {}, recording_backend{log}};
  const auto filler = cache.create_sequence(text(100, 40)).value().id;
  const auto used = create_committed(cache, text(0, 20));
  write_rows(cache, used, text(0, 20));
  REQUIRE(cache.release(filler));
  const auto before = table_of(cache, used);
  log.fail = true;
  CHECK(cache.resize(10).error().code == error_code::backend_failure);
  CHECK(cache.num_blocks() == 20);
  CHECK(table_of(cache, used) == before);
  check_sound(cache);
  log.fail = false;
  REQUIRE(cache.resize(10, 3));
  CHECK(log.calls.back() == std::pair{std::string{"move"}, 3});
  CHECK(holds_rows(cache, used, text(0, 20)));
  release_all(cache, {used});

  auto small = kv_cache<float32, lock_free, clock_sweep, mapped_once>{growing_cache(4, 9)};
  const auto refused = small.resize(9);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::out_of_memory);
  CHECK(small.num_blocks() == 4);
  CHECK(small.memory().payload < 9 * 256);
  check_sound(small);
}
