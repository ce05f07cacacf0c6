#include "../support/cache_fixture.hpp"
#include "../support/on_threads.hpp"

#include <pagedkv/policy/allocator/page_allocators.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>

#include <array>
#include <atomic>
#include <random>
#include <span>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

template <locking Locking>
using shared_cache = kv_cache<float32, Locking>;

/// One thread's life: sequences of its own on prefixes that all threads share. Returns the first thing that was wrong.
template <class Cache>
[[nodiscard]] std::string work(Cache& cache, unsigned seed, int rounds) {
  auto random = std::mt19937{seed};
  auto mine = std::vector<sequence_id>{};
  auto pins = std::vector<pin_id>{};
  const auto end = [&](std::size_t index) {
    const auto released = cache.release(mine[index]).has_value();
    mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(index));
    return released;
  };
  for (auto round = 0; round < rounds; ++round) {
    const auto prompt = text(static_cast<token>(random() % 3), random() % 30);
    const auto key = std::array{prefix_key{static_cast<std::int64_t>(prompt.size() / 2), {random() % 2, 0}}};
    const auto keys = std::span{key}.first(prompt.empty() ? 0 : random() % 2);
    const auto options = sequence_options{.publish = random() % 8 != 0, .first_chunk = random() % 4 == 0 ? 3 : 100};
    switch (random() % 11) {
      case 0:
      case 1:
        if (const auto made = cache.create_sequence({prompt, keys}, options)) {
          mine.push_back(made->id);
        } else if (made.error().code != error_code::capacity_exhausted &&
                   made.error().code != error_code::limit_reached) {
          return "create: " + made.error().message();
        }
        break;
      case 2:
        if (cache.find_prefix({prompt, keys}) > std::ssize(prompt)) {
          return "a prefix longer than the prompt";
        }
        break;
      case 3:
        if (const auto pinned = cache.pin({prompt, keys})) {
          pins.push_back(pinned->id);
        }
        break;
      case 4:
        if (!pins.empty()) {
          if (!cache.unpin(pins.back())) {
            return "unpin failed";
          }
          pins.pop_back();
        }
        break;
      case 5:
        if (const auto step = cache.begin_step()) {
          if (!cache.retire_step(*step)) {
            return "retire failed";
          }
        }
        break;
      case 7:
        if (const auto step = cache.begin_step({})) {
          auto victims = std::array{no_block, no_block};
          if (!cache.evict(victims, *step) || !cache.retire_step(*step)) {
            return "evict failed";
          }
        }
        break;
      case 6:
        static_cast<void>(cache.statistics());
        cache.advance_time(timestamp{round});
        break;
      default: break;
    }
    if (mine.empty()) {
      continue;
    }
    const auto index = random() % mine.size();
    const auto id = mine[index];
    const auto before = cache.describe(id);
    if (!before) {
      return "describe: " + before.error().message();
    }
    auto expected = before->num_tokens;
    switch (random() % 8) {
      case 6:
        static_cast<void>(cache.reserve_slots(id, 3));  // may not fit
        break;
      case 7: {
        auto slots = std::array<slot, 30>{};
        auto failures = std::array<batch_failure, 1>{};
        const auto entry = batch_entry{.id = id, .run = prompt, .num_computed_tokens = expected};
        const auto done = cache.append_batch({&entry, 1}, {slots, failures, {}});
        expected += done && done->num_failures == 0 ? std::ssize(prompt) : 0;
        break;
      }
      case 0:
        if (cache.append(id, 7)) {
          ++expected;
        }
        break;
      case 1:
        if (!cache.commit(id, before->num_tokens)) {
          return "commit failed";
        }
        break;
      case 2:
        if (const auto fork = cache.fork(id)) {
          mine.push_back(*fork);
        }
        break;
      case 3:
        expected = before->num_tokens / 2;
        if (!cache.truncate(id, expected)) {
          return "truncate failed";
        }
        break;
      case 4:
        if (!end(index)) {
          return "release failed";
        }
        continue;
      default:
        auto slots = std::vector<slot>(static_cast<std::size_t>(expected));
        if (!cache.slot_mapping(id, 0, slots)) {
          return "slot mapping failed";
        }
        break;
    }
    if (cache.describe(id)->num_tokens != expected) {
      return "a length that nobody else may change has changed";
    }
  }
  while (!mine.empty()) {
    if (!end(0)) {
      return "release failed";
    }
  }
  for (const auto id : pins) {
    if (!cache.unpin(id)) {
      return "unpin failed";
    }
  }
  return {};
}

/// Four threads with sequences of their own work on a cache. Until all are done, or one complains, another calls
/// `meanwhile`, which returns a complaint, too.
template <class Cache, class Meanwhile>
void check_work(Cache& cache, unsigned seed, Meanwhile meanwhile) {
  constexpr auto num_threads = 4;
  auto complaints = std::vector<std::string>(num_threads + 1);
  auto num_done = std::atomic<int>{0};
  on_threads(num_threads + 1, [&](int i) {
    if (i < num_threads) {
      complaints[static_cast<std::size_t>(i)] = work(cache, seed + static_cast<unsigned>(i), 3000);
      ++num_done;
    }
    while (i == num_threads && num_done < num_threads && complaints.back().empty()) {
      complaints.back() = meanwhile();
    }
  });
  for (const auto& complaint : complaints) {
    CHECK(complaint == "");
  }
}

}  // namespace

TEMPLATE_TEST_CASE("threads with sequences of their own share one cache, which another compacts",
                   "[cache][threads][random]", rw_lock, basic_sharded_mutex<3>) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto cache = shared_cache<TestType>{small_cache(24)};
  check_work(cache, seed, [&] {
    static_cast<void>(cache.compact());
    const auto broken = cache.check_invariants();
    return broken.empty() ? std::string{} : broken.front();
  });
  const auto statistics = cache.statistics();
  CHECK(statistics.blocks.in_use == 0);
  CHECK(statistics.blocks.retiring == 0);
  CHECK(statistics.hit_blocks > 0);
  CHECK(statistics.evictions > 0);
  check_sound(cache);
}

TEMPLATE_TEST_CASE("threads with sequences of their own share one cache, which another resizes",
                   "[cache][threads][random]", rw_lock, basic_sharded_mutex<3>, lock_free) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  constexpr auto smallest = 8;  // a prompt
  auto config = small_cache(24);
  config.max_blocks = 40;
  auto cache = kv_cache<float32, TestType, clock_sweep, reserving_allocator>{config};
  auto random = std::mt19937{seed};
  check_work(cache, seed, [&]() -> std::string {
    const auto before = cache.num_blocks();
    const auto wanted = static_cast<std::int32_t>(smallest + random() % (40 - smallest + 1));
    const auto resized = cache.resize(wanted);
    const auto& counts = cache.statistics().blocks;
    if (cache.num_blocks() != (resized ? wanted : before)) {
      return "the size is neither the old nor the new one";
    }
    if (!resized && resized.error().code != error_code::in_use) {
      return "resize: " + resized.error().message();
    }
    const auto adds_up = counts.free + counts.in_use + counts.evictable + counts.retiring == cache.num_blocks();
    return adds_up ? "" : "the blocks of all states do not add up to the pool";
  });
  CHECK(cache.statistics().blocks.in_use == 0);
  check_sound(cache);
  CHECK(cache.resize(1));
  CHECK(cache.resize(40));
  check_sound(cache);
}

TEST_CASE("two threads on one sequence wait for each other", "[cache][threads]") {
  auto cache = shared_cache<rw_lock>{small_cache(300)};
  const auto id = cache.create_sequence(text(0, 1)).value().id;
  auto appended = std::atomic<int>{0};
  on_threads(4, [&](int) {
    for (auto j = 0; j < 250; ++j) {
      appended += cache.append(id, j).has_value();
    }
  });
  CHECK(appended == 1000);
  CHECK(cache.describe(id)->num_tokens == 1001);
  release_all(cache, {id});
}
