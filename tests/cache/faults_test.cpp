#include "../support/allocation_count.hpp"
#include "../support/cache_fixture.hpp"
#include "../support/failing_allocator.hpp"
#include "../support/recording_backend.hpp"

#include <pagedkv/policy/eviction/priority.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <array>
#include <limits>
#include <new>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using recorded_cache = kv_cache<float32, recording_backend>;

/// The state of the cache and of one sequence that a caller can observe.
struct snapshot {
  block_counts blocks;
  std::int64_t copies;
  std::int64_t evictions;
  std::int64_t num_tokens;
  std::int64_t num_computed_tokens;
  timestamp last_access;
  std::vector<block_id> table;

  friend bool operator==(const snapshot&, const snapshot&) = default;
};

template <class Cache>
[[nodiscard]] snapshot look_at(Cache& cache, sequence_id id) {
  const auto statistics = cache.statistics();
  const auto info = cache.describe(id).value();
  return {statistics.blocks,        statistics.copies, statistics.evictions, info.num_tokens,
          info.num_computed_tokens, info.last_access,  table_of(cache, id)};
}

}  // namespace

TEST_CASE("copies on write and compaction run on the caller's stream", "[cache][faults]") {
  auto log = recording_backend::log{};
  auto cache = recorded_cache{small_cache(8), {}, recording_backend{log}};
  const auto filler = cache.create_sequence(text(100, 4)).value().id;
  const auto first = create_committed(cache, text(0, 6));
  const auto second = cache.fork(first).value();
  CHECK(log.calls.empty());
  REQUIRE(cache.append(second, 7, 3));
  CHECK(log.calls == std::vector{std::pair{std::string{"copy"}, 3}});
  REQUIRE(cache.append(second, text(0, 9), 4));
  CHECK(log.calls.size() == 1);
  REQUIRE(cache.release(filler));
  REQUIRE(cache.compact(5));
  CHECK(log.calls.back() == std::pair{std::string{"move"}, 5});
  auto number = std::vector<float>(2);
  const auto slots = std::vector{skip_slot};
  REQUIRE(cache.write(0, slots, contiguous_rows(number, 1, 2), contiguous_rows(number, 1, 2), 6));
  CHECK(log.calls.back() == std::pair{std::string{"append"}, 6});
  REQUIRE(cache.read(0, slots, contiguous_rows(number, 1, 2), contiguous_rows(number, 1, 2), 7));
  CHECK(log.calls.back() == std::pair{std::string{"gather"}, 7});
  release_all(cache, {first, second});
}

TEST_CASE("a copy on write that fails in the backend changes nothing", "[cache][faults]") {
  auto log = recording_backend::log{};
  auto cache = recorded_cache{small_cache(8), {}, recording_backend{log}};
  const auto first = create_committed(cache, text(0, 6));
  const auto second = cache.fork(first).value();
  cache.advance_time(timestamp{5});
  for (const auto size : {std::size_t{1}, std::size_t{2}, std::size_t{9}}) {
    CAPTURE(size);
    const auto before = look_at(cache, second);
    log.fail = true;
    const auto failed = cache.append(second, text(0, size));
    REQUIRE_FALSE(failed);
    CHECK(failed.error().code == error_code::backend_failure);
    CHECK(look_at(cache, second) == before);
    check_sound(cache);
  }
  log.fail = false;
  CHECK(cache.append(second, text(0, 9)));
  release_all(cache, {first, second});
}

TEST_CASE("a compaction that fails in the backend changes nothing", "[cache][faults]") {
  auto log = recording_backend::log{};
  log.fail = true;
  auto cache = recorded_cache{small_cache(8), {}, recording_backend{log}};
  const auto filler = cache.create_sequence(text(100, 4)).value().id;
  const auto id = create_committed(cache, text(0, 6));
  REQUIRE(cache.release(filler));
  const auto before = look_at(cache, id);
  CHECK(cache.compact().error().code == error_code::backend_failure);
  CHECK(look_at(cache, id) == before);
  CHECK(num_cached(cache, text(0, 4)) == 4);
  check_sound(cache);
  release_all(cache, {id});
}

TEST_CASE("a compaction that runs out of memory changes nothing, also of the order of eviction", "[cache][faults]") {
  const auto keep = text(0, 4);
  const auto drop = text(10, 4);
  for (auto n = 1, refusals = 0;; ++n) {
    CAPTURE(n);
    auto cache = kv_cache<float32, basic_sharded_mutex<1>, priority>{small_cache(8)};
    const auto filler = cache.create_sequence(text(100, 16)).value().id;
    release_all(cache, {filler, create_committed(cache, keep, {.priority = 100}),
                        create_committed(cache, drop, {.priority = 1})});
    const auto allocations_before = allocation_count();
    fail_allocation(n);
    const auto compacted = cache.compact();
    fail_allocation(0);
    const bool failed = allocation_count() >= allocations_before + n;
    check_sound(cache);
    CHECK(num_cached(cache, keep) == 4);
    CHECK(num_cached(cache, drop) == 4);
    CHECK(compacted.has_value() == !failed);
    CHECK((compacted || compacted.error().code == error_code::out_of_memory));
    refusals += !compacted;

    const auto all_but_one = cache.create_sequence(text(100, 28)).value().id;
    CHECK(num_cached(cache, keep) == 4);
    const auto last = cache.create_sequence(text(200, 4)).value().id;
    CHECK(num_cached(cache, keep) + num_cached(cache, drop) == 0);
    release_all(cache, {all_but_one, last});
    if (!failed) {
      CHECK(compacted->size() == 2);
      CHECK(refusals >= 2);
      break;
    }
  }
}

TEST_CASE("an allocator with nothing left makes the constructor throw", "[cache][faults]") {
  using cache = kv_cache<float32, failing_allocator<>>;
  auto log = allocation_log{.fail_at = 1};
  try {
    const auto made = cache{small_cache(8), failing_allocator<>{log}};
    FAIL("made a cache without memory");
  } catch (const exception& e) {
    CHECK(e.reason().code == error_code::out_of_memory);
  }
  {
    const auto made = cache{small_cache(8), failing_allocator<>{log}};
    CHECK(log.live == 1);
    CHECK(log.calls == 2);
  }
  CHECK(log.live == 0);
}

TEST_CASE("a constructor that runs out of memory at any point gives everything back", "[cache][faults]") {
  using cache = kv_cache<float32, fifo, failing_allocator<>>;
  auto log = allocation_log{};
  auto failures = 0;
  for (auto n = 1;; ++n) {
    fail_allocation(n);
    try {
      const auto made = cache{small_cache(64), failing_allocator<>{log}};
      fail_allocation(0);
      break;
    } catch (const std::bad_alloc&) {
      fail_allocation(0);
      ++failures;
    }
    CHECK(log.live == 0);
  }
  CHECK(failures >= 5);
  CHECK(log.live == 0);
}

TEST_CASE("foreseeing what releases would gain without memory is an error", "[cache][faults]") {
  auto cache = kv_cache<>{small_cache(64)};
  const auto ids = std::array{create_committed(cache, text(0, 20)), create_committed(cache, text(500, 12))};
  const auto prompt = text(0, 20);
  auto failures = 0;
  for (auto n = 1;; ++n) {
    fail_allocation(n);
    const auto gain = cache.gain_of_releasing(ids, prompt);
    fail_allocation(0);
    if (gain) {
      break;
    }
    ++failures;
    CHECK(gain.error().code == error_code::out_of_memory);
  }
  CHECK(failures >= 2);
  for (auto n = 1;; ++n) {
    fail_allocation(n);
    const auto chosen = cache.fewest_to_release(ids, 1);
    fail_allocation(0);
    if (chosen) {
      CHECK(n > 3);
      break;
    }
    CHECK(chosen.error().code == error_code::out_of_memory);
  }
}

TEST_CASE("operations that run out of memory at any point say so and change nothing", "[cache][faults]") {
  auto failures = 0;
  for (auto n = 1;; ++n) {
    CAPTURE(n);
    auto cache = kv_cache<>{small_cache(64)};
    auto ids = std::vector<sequence_id>{};
    auto pins = std::vector<pin_id>{};
    ids.reserve(8);
    pins.reserve(8);
    const auto prompt = text(0, 20);
    const auto run = text(100, 40);
    const auto filler = create_committed(cache, text(500, 12));
    const auto told = failures;
    const auto note = [&](const auto& outcome) {
      if (!outcome) {
        ++failures;
        CHECK(outcome.error().code == error_code::out_of_memory);
      }
      return outcome.has_value();
    };
    const auto before = cache.statistics().blocks;
    auto must_succeed = true;  // looked at later, since an assertion allocates
    fail_allocation(n);
    if (const auto made = cache.create_sequence(prompt); note(made)) {
      ids.push_back(made->id);
      const auto tokens_before = cache.describe(made->id)->num_tokens;
      if (!note(cache.append(made->id, run))) {
        CHECK(cache.describe(made->id)->num_tokens == tokens_before);
      }
      must_succeed = cache.commit(made->id, cache.describe(made->id)->num_tokens).has_value();
      if (const auto fork = cache.fork(made->id); note(fork)) {
        ids.push_back(*fork);
        note(cache.append(*fork, 1));
      }
    } else {
      CHECK(cache.statistics().blocks == before);
    }
    if (const auto pinned = cache.pin(prompt); note(pinned)) {
      pins.push_back(pinned->id);
    }
    must_succeed = cache.release(filler).has_value() && must_succeed;
    note(cache.compact());
    const bool reached = failures != told;
    fail_allocation(0);
    CHECK(must_succeed);
    check_sound(cache);
    for (const auto id : pins) {
      CHECK(cache.unpin(id));
    }
    release_all(cache, ids);
    if (!reached) {
      break;
    }
  }
  CHECK(failures >= 5);
}

TEST_CASE("a bad configuration is thrown with its reason", "[cache][faults]") {
  auto zero = small_cache(0);
  CHECK_THROWS_AS(kv_cache<>{zero}, exception);
  auto huge = small_cache(std::numeric_limits<std::int32_t>::max());
  huge.num_layers = huge.num_kv_heads = 1'000'000;
  huge.head_dim = 100;
  try {
    const auto made = kv_cache<>{huge};
    FAIL("made a cache larger than any memory");
  } catch (const exception& e) {
    CHECK(e.reason().code == error_code::size_overflow);
  }
}
