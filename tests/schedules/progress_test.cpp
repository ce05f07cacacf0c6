#include "../support/check_schedules.hpp"
#include "scheduled_cache.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

/// The operation of the thread that will be stopped, on a sequence of its own with five tokens, two of its blocks
/// shared.
struct stopped_operation {
  const char* name;
  bool enters;  // the operation enters the sequence, which is busy then
  std::function<void(cache_under_test&, sequence_id)> run;
};

/// Commits a sequence to its length, and appends so many tokens.
void append_batch(cache_under_test& cache, sequence_id id, std::int64_t length, std::size_t num_tokens) {
  const auto run = numbered(num_tokens, 60);
  auto slots = std::array<slot, 4>{};
  auto failures = std::array<batch_failure, 1>{};
  const auto entry = batch_entry{.id = id, .run = run, .num_computed_tokens = length, .num_ahead = 1};
  ignore(cache.append_batch({&entry, 1}, {slots, failures, {}}));
}

constexpr auto lower_blocks = std::array{block_id{0}, block_id{1}, block_id{2}};

std::vector<stopped_operation> operations_that_change() {
  return {
      {"create", false, [](cache_under_test& cache, sequence_id) { ignore(cache.create_sequence(numbered(5))); }},
      {"create that evicts", false,
       [](cache_under_test& cache, sequence_id) { ignore(cache.create_sequence(numbered(4, 50))); }},
      {"create that is refused", false,
       [](cache_under_test& cache, sequence_id) { ignore(cache.create_sequence(numbered(12, 70))); }},
      {"append", true, [](cache_under_test& cache, sequence_id id) { ignore(cache.append(id, numbered(3))); }},
      {"append that copies", true,
       [](cache_under_test& cache, sequence_id id) {
         ignore(cache.truncate(id, 3));
         ignore(cache.append(id, token{7}));
       }},
      {"append batch", true, [](cache_under_test& cache, sequence_id id) { append_batch(cache, id, 5, 3); }},
      {"append batch that copies", true,
       [](cache_under_test& cache, sequence_id id) {
         ignore(cache.truncate(id, 3));
         append_batch(cache, id, 3, 1);
       }},
      {"reserve slots", true, [](cache_under_test& cache, sequence_id id) { ignore(cache.reserve_slots(id, 4)); }},
      {"commit", true,
       [](cache_under_test& cache, sequence_id id) {
         ignore(cache.append(id, token{9}));
         ignore(cache.commit(id, 6));
       }},
      {"fork", true, [](cache_under_test& cache, sequence_id id) { ignore(cache.fork(id)); }},
      {"truncate", true, [](cache_under_test& cache, sequence_id id) { ignore(cache.truncate(id, 1)); }},
      {"drop before", true, [](cache_under_test& cache, sequence_id id) { ignore(cache.drop_before(id, 4)); }},
      {"release", true, [](cache_under_test& cache, sequence_id id) { ignore(cache.release(id)); }},
      {"pin", false,
       [](cache_under_test& cache, sequence_id) {
         if (const auto pinned = cache.pin(numbered(4))) {
           ignore(cache.unpin(pinned->id));
         }
       }},
      {"unpin all", false,
       [](cache_under_test& cache, sequence_id) {
         ignore(cache.pin(numbered(4)));
         cache.unpin_all();
       }},
      {"invalidate a prefix", false, [](cache_under_test& cache, sequence_id) { cache.invalidate_prefix(numbered(5)); }},
      {"invalidate a salt", false, [](cache_under_test& cache, sequence_id) { cache.invalidate_salt(salt::none); }},
      {"invalidate blocks", false,
       [](cache_under_test& cache, sequence_id) { ignore(cache.invalidate_blocks(lower_blocks)); }},
      {"resize", false,
       [](cache_under_test& cache, sequence_id) {
         ignore(cache.resize(5));
         ignore(cache.resize(6));
       }},
      {"step", true,
       [](cache_under_test& cache, sequence_id id) {
         if (const auto step = cache.begin_step()) {
           ignore(cache.release(id));
           ignore(cache.retire_step(*step));
         }
       }},
      {"step that names its sequence", true,
       [](cache_under_test& cache, sequence_id id) {
         if (const auto step = cache.begin_step(std::span{&id, 1})) {
           ignore(cache.truncate(id, 3));
           ignore(cache.append(id, token{7}));
           ignore(cache.release(id));
           ignore(cache.retire_step(*step));
         }
       }},
      {"reset", true,
       [](cache_under_test& cache, sequence_id id) {
         ignore(cache.release(id));
         ignore(cache.reset_prefix_cache());
       }},
      {"evict", false,
       [](cache_under_test& cache, sequence_id) {
         if (const auto step = cache.begin_step({})) {
           auto victims = std::array{no_block, no_block};
           ignore(cache.evict(victims, *step));
           ignore(cache.retire_step(*step));
         }
       }},
      {"time", false,
       [](cache_under_test& cache, sequence_id) {
         cache.advance_time(timestamp{7});
         ignore(cache.time());
       }},
  };
}

std::vector<stopped_operation> operations_that_read() {
  return {
      {"look-up", false, [](cache_under_test& cache, sequence_id) { ignore(cache.find_prefix(numbered(6))); }},
      {"forecast", false, [](cache_under_test& cache, sequence_id) { ignore(cache.would_fit(numbered(6))); }},
      {"numbers of blocks", false,
       [](cache_under_test& cache, sequence_id) {
         ignore(cache.num_blocks());
         ignore(cache.num_free_blocks());
         ignore(cache.num_available_blocks());
       }},
      {"describe", true, [](cache_under_test& cache, sequence_id id) { ignore(cache.describe(id)); }},
      {"slot mapping", true,
       [](cache_under_test& cache, sequence_id id) {
         auto slots = std::array<slot, 5>{};
         ignore(cache.slot_mapping(id, 0, slots));
       }},
      {"block table", true,
       [](cache_under_test& cache, sequence_id id) {
         auto blocks = std::array<block_id, 3>{};
         ignore(cache.block_table(id, blocks));
       }},
      {"tokens and keys", true,
       [](cache_under_test& cache, sequence_id id) {
         auto tokens = std::array<token, 5>{};
         auto keys = std::array<prefix_key, 1>{};
         ignore(cache.tokens(id, 0, tokens));
         ignore(cache.keys(id, keys));
       }},
      {"common prefix", true,
       [](cache_under_test& cache, sequence_id id) { ignore(cache.common_prefix(std::span{&id, 1})); }},
      {"update", true,
       [](cache_under_test& cache, sequence_id id) {
         auto batch = compressed_batch{1, 3};
         ignore(cache.update(batch, std::span{&id, 1}));
       }},
      {"statistics", false, [](cache_under_test& cache, sequence_id) { ignore(cache.statistics()); }},
      {"memory", false, [](cache_under_test& cache, sequence_id) { ignore(cache.memory()); }},
      {"gain", true,
       [](cache_under_test& cache, sequence_id id) { ignore(cache.gain_of_releasing(std::span{&id, 1}, numbered(6))); }},
      {"fewest", true,
       [](cache_under_test& cache, sequence_id id) { ignore(cache.fewest_to_release(std::span{&id, 1}, 1, numbered(6))); }},
  };
}

/// The results of every operation that reads a sequence, and of one that changes it.
struct answers {
  int num_busy = 0;
  int num_others = 0;
};

answers enter(cache_under_test& cache, sequence_id id) {
  auto told = answers{};
  const auto count = [&](const auto& outcome) {
    const auto busy = outcome.has_error() && outcome.error().code == error_code::sequence_busy;
    ++(busy ? told.num_busy : told.num_others);
  };
  auto slots = std::array<slot, 1>{};
  auto blocks = std::array<block_id, 8>{};
  auto rows = padded_batch{1, 8};
  auto batch = compressed_batch{1, 8};
  count(cache.describe(id));
  count(cache.slot_mapping(id, 0, slots));
  count(cache.block_table(id, blocks));
  auto tokens = std::array<token, 1>{};
  auto keys = std::array<prefix_key, 1>{};
  count(cache.tokens(id, 0, tokens));
  count(cache.keys(id, keys));
  count(cache.common_prefix(std::span{&id, 1}));
  count(cache.reserve_slots(id, 1));
  count(cache.update(rows, std::span{&id, 1}));
  count(cache.update(batch, std::span{&id, 1}));
  count(cache.append(id, token{1}));
  return told;
}

/// One operation of every kind, with any result except `sequence_busy`.
void one_of_everything(execution& e, cache_under_test& cache, token first) {
  ignore(cache.find_prefix(numbered(6)));
  if (const auto step = cache.begin_step()) {
    ignore(cache.retire_step(*step));
  }
  if (const auto pinned = cache.pin(numbered(6))) {
    ignore(cache.unpin(pinned->id));
  }
  cache.unpin_all();
  ignore(cache.would_fit(numbered(6)));
  ignore(cache.num_blocks());
  ignore(cache.num_free_blocks());
  ignore(cache.num_available_blocks());
  ignore(cache.resize(5));
  cache.advance_time(timestamp{first});
  ignore(cache.time());
  if (const auto made = cache.create_sequence(numbered(3, first))) {
    e.expect(enter(cache, made->id).num_busy == 0, "a sequence is busy that only one thread knows");
    append_batch(cache, made->id, 3, 1);
    ignore(cache.reserve_slots(made->id, 2));
    cache.invalidate_prefix(numbered(3, first));
    ignore(cache.truncate(made->id, 3));
    if (const auto copy = cache.fork(made->id)) {
      ignore(cache.append(*copy, token{1}));
      ignore(cache.release(*copy));
    }
    ignore(cache.gain_of_releasing(std::span{&made->id, 1}, numbered(6)));
    ignore(cache.fewest_to_release(std::span{&made->id, 1}, 1, numbered(6)));
    const auto step = cache.begin_step(std::span{&made->id, 1});
    ignore(cache.drop_before(made->id, 2));
    ignore(cache.truncate(made->id, 2));
    ignore(cache.release(made->id));
    if (step) {
      ignore(cache.retire_step(*step));
    }
  }
  cache.invalidate_salt(salt::none);
  ignore(cache.invalidate_blocks(lower_blocks));
  ignore(cache.resize(6));
  ignore(cache.statistics());
  ignore(cache.memory());
  ignore(cache.reset_prefix_cache());
}

void stop_anywhere(const stopped_operation& stopped, unsigned seed) {
  auto times_busy = 0;
  const auto body = [&](execution& e) {
    auto cache = cache_under_test{six_blocks()};
    const auto own = cache.create_sequence(numbered(5)).value().id;
    cache.commit(own, 5).value();
    const auto gone = cache.create_sequence(numbered(3, 30)).value().id;
    cache.commit(gone, 3).value();
    cache.release(gone).value();
    e.spawn([&] { stopped.run(cache, own); });
    e.spawn([&] { one_of_everything(e, cache, 0); });
    e.spawn([&] {
      const auto told = enter(cache, own);
      e.expect(told.num_busy == 0 || told.num_others == 0, "a sequence is busy to some operations only");
      times_busy += told.num_busy;
      one_of_everything(e, cache, 90);
    });
    e.run();
    expect_sound(e, cache);
  };
  const auto found = explorer{{.preemptions = 4, .max_steps = 20'000}}.stopped_anywhere(body, 1, seed);
  CAPTURE(stopped.name);
  check_complete(found);
  CHECK(found.schedules > 4);
  CHECK((times_busy > 0) == stopped.enters);
}

TEST_CASE("a thread stopped anywhere in an operation of a lock-free cache stops no other",
          "[progress][scheduler][random]") {
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  for (const auto& stopped : operations_that_change()) {
    stop_anywhere(stopped, seed);
  }
}

TEST_CASE("a thread stopped anywhere while it reads from a lock-free cache stops no other",
          "[progress][scheduler][random]") {
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  for (const auto& stopped : operations_that_read()) {
    stop_anywhere(stopped, seed);
  }
}

/// The other thread's operation returns at once and has changed nothing; the sequence stays usable.
TEST_CASE("a second operation on a sequence is told that it is busy, wherever the first is",
          "[progress][scheduler][random]") {
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  auto times_busy = 0;
  const auto body = [&](execution& e) {
    auto cache = cache_under_test{six_blocks()};
    const auto shared = cache.create_sequence(numbered(3)).value().id;
    auto num_appended = std::array{0, 0};
    for (auto thread = std::size_t{0}; thread < 2; ++thread) {
      e.spawn([&, thread] {
        for (auto i = 0; i < 2; ++i) {
          const auto appended = cache.append(shared, numbered(2));
          num_appended[thread] += appended ? 2 : 0;
          times_busy += !appended;
          e.expect(appended || appended.error().code == error_code::sequence_busy, "refused for another reason");
        }
      });
    }
    e.run();
    e.expect(cache.describe(shared).value().num_tokens == 3 + num_appended[0] + num_appended[1],
             "an operation that was told 'busy' has changed the sequence, or one that succeeded has not");
    expect_sound(e, cache);
  };
  check_complete(explorer{{.preemptions = 4}}.stopped_anywhere(body, 1, seed));
  CHECK(times_busy > 0);
}

template <class Cache>
void pin_races_release(execution& e) {
  auto config = six_blocks();
  config.num_blocks = 2;  // none is free
  auto cache = Cache{config};
  const auto id = cache.create_sequence(numbered(4)).value().id;
  cache.commit(id, 4).value();
  e.spawn([&] { e.expect(cache.release(id).has_value(), "a sequence cannot be released"); });
  e.spawn([&] {
    const auto pinned = cache.pin(numbered(4));
    e.expect(pinned.has_value() && pinned->num_tokens == 4, "a prefix that stays cached cannot be pinned");
  });
  e.run();
  expect_sound(e, cache);
}

TEST_CASE("a prefix that stays cached is pinned, wherever its release is", "[progress][scheduler]") {
  using sharded_cache = kv_cache<float32, scheduled_sharded_mutex>;
  for (const auto& body : {scenario{pin_races_release<cache_under_test>}, scenario{pin_races_release<sharded_cache>}}) {
    check_complete(explorer{{.preemptions = 1}}.exhaustive(body));
  }
}

/// A look-up has a lease on the block meanwhile, so that it stays, out of reach, until the look-up has ended.
template <class Cache>
void invalidation_races_look_up(execution& e) {
  auto cache = Cache{six_blocks()};
  const auto id = cache.create_sequence(numbered(2)).value().id;
  cache.commit(id, 2).value();
  cache.release(id).value();
  e.spawn([&] { ignore(cache.find_prefix(numbered(3))); });
  e.spawn([&] {
    const auto num = cache.invalidate_prefix(numbered(2)) + cache.invalidate_salt(salt::none) +
                     cache.invalidate_blocks(lower_blocks).value() + cache.invalidate_salt(salt::none);
    e.expect(num == 1, "one block was not invalidated once");
    e.expect(cache.find_prefix(numbered(3)) == 0, "an invalidated block is found");
  });
  e.run();
  e.expect(cache.statistics().invalidations == 1, "one block was not counted once as invalidated");
  expect_sound(e, cache);
}

TEST_CASE("a block is invalidated once, wherever a look-up is that has a lease on it", "[progress][scheduler]") {
  using sharded_cache = kv_cache<float32, scheduled_sharded_mutex>;
  for (const auto& body :
       {scenario{invalidation_races_look_up<cache_under_test>}, scenario{invalidation_races_look_up<sharded_cache>}}) {
    check_complete(explorer{{.preemptions = 1}}.exhaustive(body));
  }
}

/// As docs/concurrency.md says: the step is open from the swap that numbers it.
TEST_CASE("a thread stopped in begin_step keeps blocks of later steps from reuse, and the 64th step behind it",
          "[progress][scheduler]") {
  auto limits = explorer{{.max_steps = 50'000}};
  auto num_delayed = 0;
  auto finished = false;
  for (auto steps = std::uint32_t{1}; !finished; ++steps) {
    auto num_behind = 0;
    auto num_retiring = std::int64_t{0};
    auto num_made = std::uint32_t{0};
    const auto body = [&](execution& e) {
      auto cache = cache_under_test{six_blocks()};
      e.spawn([&] { cache.retire_step(cache.begin_step().value()).value(); });
      e.spawn([&] {
        const auto id = cache.create_sequence(numbered(3)).value().id;
        const auto used = cache.begin_step(std::span{&id, 1}).value();
        cache.release(id).value();
        cache.retire_step(used).value();
        for (num_behind = 1; num_behind < 70; ++num_behind) {
          const auto step = cache.begin_step({});
          if (!step) {
            e.expect(step.error().code == error_code::limit_reached, "a step is refused for another reason");
            break;
          }
          cache.retire_step(*step).value();
        }
        num_retiring = cache.statistics().blocks.retiring;
        e.expect(cache.create_sequence(numbered(2, 20)).has_value(), "an operation is delayed");
      });
      e.run();
      num_made = e.steps(1);
      e.expect(cache.statistics().blocks.retiring == 0, "blocks wait for steps that have retired");
    };
    const auto found = limits.stopped(body, {1, steps});
    CAPTURE(steps, found.failure);
    REQUIRE(found.failure.empty());
    CHECK(((num_behind == 70 && num_retiring == 0) || (num_behind == 63 && num_retiring == 2)));
    num_delayed += num_behind == 63;
    finished = num_made <= steps;
  }
  CHECK(num_delayed > 1);
}

}  // namespace
