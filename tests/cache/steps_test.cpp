#include "../support/cache_fixture.hpp"

#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>

#include <algorithm>
#include <array>
#include <random>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

TEST_CASE("blocks that no open step uses are available as soon as they are released", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto used = create_committed(cache, text(0, 8));
  const auto unused = create_committed(cache, text(100, 6));
  const auto step = cache.begin_step(std::array{used}).value();
  REQUIRE(cache.release(unused));
  CHECK(cache.statistics().blocks == block_counts{.free = 5, .in_use = 2, .evictable = 1});
  REQUIRE(cache.release(used));
  CHECK(cache.statistics().blocks == block_counts{.free = 5, .evictable = 1, .retiring = 2});
  check_sound(cache);
  REQUIRE(cache.retire_step(step));
  CHECK(cache.statistics().blocks == block_counts{.free = 5, .evictable = 3});
  check_sound(cache);
}

TEST_CASE("a block that two sequences hold waits for the step of one, whichever is released last", "[cache][steps]") {
  for (const auto used_first : {true, false}) {
    CAPTURE(used_first);
    auto cache = kv_cache<>{small_cache(8)};
    const auto used = create_committed(cache, text(0, 8));
    const auto other = cache.fork(used).value();
    const auto step = cache.begin_step(std::array{used}).value();
    REQUIRE(cache.release(used_first ? used : other));
    CHECK(cache.statistics().blocks.in_use == 2);
    REQUIRE(cache.release(used_first ? other : used));
    CHECK(cache.statistics().blocks.retiring == 2);
    check_sound(cache);
    REQUIRE(cache.retire_step(step));
    CHECK(cache.statistics().blocks.evictable == 2);
    check_sound(cache);
  }
}

TEMPLATE_TEST_CASE("commits ahead of a launch stay so where the begin of another step is refused", "[cache][steps]",
                   single_thread, rw_lock, sharded_mutex, lock_free) {
  auto cache = kv_cache<TestType, clock_sweep>{small_cache(8)};
  const auto gone = cache.create_sequence(text(0, 1)).value().id;
  REQUIRE(cache.release(gone));
  const auto step = cache.begin_step(std::array<sequence_id, 0>{}).value();
  const auto writer = create_committed(cache, text(0, 9));
  CHECK(cache.begin_step(std::array{writer, gone}).error().code == error_code::unknown_sequence);
  CHECK(cache.withdraw(writer).value() == 2);
  CHECK(cache.find_prefix(text(0, 9)) == 0);
  REQUIRE(cache.release(writer));

  const auto other = create_committed(cache, text(0, 9));
  const auto next = cache.begin_step(std::array{other}).value();
  CHECK(cache.withdraw(other).value() == 0);  // launched before
  CHECK(cache.find_prefix(text(0, 9)) == 8);
  REQUIRE(cache.retire_step(next));
  REQUIRE(cache.retire_step(step));
  REQUIRE(cache.release(other));
  check_sound(cache);
}

TEST_CASE("a hit on a block that waits for a step lets it go on waiting", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto used = create_committed(cache, text(0, 8));
  const auto step = cache.begin_step(std::array{used}).value();
  REQUIRE(cache.release(used));
  const auto second = cache.create_sequence(text(0, 9)).value();
  CHECK(second.num_cached_tokens == 8);
  REQUIRE(cache.release(second.id));
  CHECK(cache.statistics().blocks == block_counts{.free = 6, .retiring = 2});
  const auto third = cache.create_sequence(text(0, 9)).value().id;
  REQUIRE(cache.retire_step(step));
  REQUIRE(cache.release(third));
  CHECK(cache.statistics().blocks == block_counts{.free = 6, .evictable = 2});
  check_sound(cache);
}

TEST_CASE("blocks appended after the step began belong to it", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto used = create_committed(cache, text(0, 8));
  const auto step = cache.begin_step(std::array{used}).value();
  REQUIRE(cache.append(used, text(50, 5)));
  REQUIRE(cache.truncate(used, 8));
  CHECK(cache.statistics().blocks == block_counts{.free = 4, .in_use = 2, .retiring = 2});
  REQUIRE(cache.drop_before(used, 4));
  CHECK(cache.statistics().blocks.retiring == 3);
  REQUIRE(cache.retire_step(step));
  CHECK(cache.statistics().blocks == block_counts{.free = 6, .in_use = 1, .evictable = 1});
  release_all(cache, {used});
}

TEST_CASE("the source of a copy on write waits for the step that copies", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 4));
  REQUIRE(cache.truncate(id, 3));
  const auto step = cache.begin_step(std::array{id}).value();
  REQUIRE(cache.append(id, 7));  // the block is published
  CHECK(cache.statistics().copies == 1);
  CHECK(cache.statistics().blocks == block_counts{.free = 6, .in_use = 1, .retiring = 1});
  REQUIRE(cache.retire_step(step));
  CHECK(cache.statistics().blocks == block_counts{.free = 6, .in_use = 1, .evictable = 1});
  release_all(cache, {id});
}

TEST_CASE("slots that an open step reads are not written in place", "[cache][steps]") {
  for (const auto everything : {false, true}) {
    auto cache = kv_cache<>{small_cache(8)};
    const auto first = create_committed(cache, text(0, 6));
    const auto second = cache.fork(first).value();
    const auto step = (everything ? cache.begin_step() : cache.begin_step(std::array{second})).value();
    const auto before = table_of(cache, first);
    REQUIRE(cache.truncate(first, 5));
    REQUIRE(cache.release(second));
    REQUIRE(cache.append(first, 9));  // the step reads token 5 of the other
    CHECK(cache.statistics().copies == 1);
    CHECK(table_of(cache, first).back() != before.back());
    check_sound(cache);
    REQUIRE(cache.retire_step(step));
    REQUIRE(cache.truncate(first, 5));
    REQUIRE(cache.append(first, 8));
    CHECK(cache.statistics().copies == 1);
    release_all(cache, {first});
  }
}

TEST_CASE("a sequence that is truncated within its step copies; after the step, it writes in place", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 6));
  const auto step = cache.begin_step(std::array{id}).value();
  REQUIRE(cache.append(id, 7));  // in place: the step does not read what is behind the end
  CHECK(cache.statistics().copies == 0);
  REQUIRE(cache.truncate(id, 5));
  REQUIRE(cache.append(id, 8));
  CHECK(cache.statistics().copies == 1);
  REQUIRE(cache.truncate(id, 5));
  REQUIRE(cache.retire_step(step));
  REQUIRE(cache.append(id, 9));
  CHECK(cache.statistics().copies == 1);
  release_all(cache, {id});
}

TEST_CASE("an append that could be in place after a step is told which", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(4)};
  const auto id = create_committed(cache, text(0, 6));
  const auto other = create_committed(cache, text(100, 4));
  const auto kept = create_committed(cache, text(200, 4));
  const auto early = cache.begin_step(std::array{id}).value();
  const auto late = cache.begin_step(std::array{other}).value();
  REQUIRE(cache.truncate(id, 5));
  const auto one = cache.append(id, 9).error();
  CHECK(one.code == error_code::capacity_exhausted);
  CHECK(one.step == early);
  const auto two = cache.append(id, text(50, 4)).error();  // a block more
  CHECK(two.value == 2);
  CHECK(two.step == step_id{});
  CHECK(two.limit == 1);
  REQUIRE(cache.release(other));
  CHECK(cache.append(id, text(50, 4)).error().step == late);
  CHECK(cache.append(id, 9).error().step == early);
  REQUIRE(cache.retire_step(early));
  CHECK(cache.append(id, 9));
  REQUIRE(cache.retire_step(late));
  CHECK(cache.append(id, text(50, 4)));
  CHECK(cache.statistics().copies == 0);
  release_all(cache, {id, kept});
}

TEST_CASE("an append to a block that others see waits for no step", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(2)};
  const auto first = create_committed(cache, text(0, 6));
  const auto step = cache.begin_step(std::array{first}).value();
  REQUIRE(cache.truncate(first, 5));
  const auto second = cache.fork(first).value();
  CHECK(cache.append(first, 9).error().step == step_id{});
  REQUIRE(cache.retire_step(step));
  CHECK_FALSE(cache.append(first, 9));
  release_all(cache, {first, second});
}

TEST_CASE("of two forks in a step, only one copies", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto first = create_committed(cache, text(0, 6));
  const auto second = cache.fork(first).value();
  const auto step = cache.begin_step(std::array{first, second}).value();
  REQUIRE(cache.append(first, 1));
  REQUIRE(cache.append(second, 2));
  CHECK(cache.statistics().copies == 1);
  REQUIRE(cache.retire_step(step));
  release_all(cache, {first, second});
}

TEST_CASE("a fork of a truncated sequence does not write slots that an open step reads", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto first = create_committed(cache, text(0, 6));
  const auto step = cache.begin_step(std::array{first}).value();
  REQUIRE(cache.truncate(first, 5));
  const auto second = cache.fork(first).value();
  REQUIRE(cache.release(first));
  REQUIRE(cache.append(second, 9));
  CHECK(cache.statistics().copies == 1);
  REQUIRE(cache.retire_step(step));
  release_all(cache, {second});
}

TEST_CASE("a sequence whose steps have retired waits for none, though an older one is open", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto slow = create_committed(cache, text(0, 8));
  const auto quick = create_committed(cache, text(100, 8));
  const auto old = cache.begin_step(std::array{slow}).value();
  const auto first = cache.begin_step(std::array{quick}).value();
  const auto second = cache.begin_step(std::array{quick}).value();
  REQUIRE(cache.retire_step(second));
  REQUIRE(cache.truncate(quick, 4));
  CHECK(cache.statistics().blocks.retiring == 1);  // `first` is open
  REQUIRE(cache.retire_step(first));
  REQUIRE(cache.release(quick));
  CHECK(cache.statistics().blocks == block_counts{.free = 4, .in_use = 2, .evictable = 1, .retiring = 1});
  REQUIRE(cache.retire_step(old));
  CHECK(cache.statistics().blocks.retiring == 0);
  release_all(cache, {slow});
}

TEST_CASE("a step of a sequence that is gone does not begin", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 8));
  const auto gone = create_committed(cache, text(100, 4));
  REQUIRE(cache.release(gone));
  const auto refused = cache.begin_step(std::array{id, gone});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::unknown_sequence);
  REQUIRE(cache.release(id));
  CHECK(cache.statistics().blocks.retiring == 0);
  CHECK(cache.compact());
}

TEST_CASE("compaction says how many steps it waits for", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto first = cache.begin_step().value();
  const auto second = cache.begin_step().value();
  CHECK(cache.compact().error().message() == "in use: number of steps in flight is 2, limit 0");
  REQUIRE(cache.retire_step(second));
  CHECK(cache.compact().error().message() == "in use: number of steps in flight is 1, limit 0");
  REQUIRE(cache.retire_step(first));
  CHECK(cache.compact());
}

TEST_CASE("a refusal says with which step the room comes", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(4)};
  const auto first = create_committed(cache, text(0, 8));
  const auto second = create_committed(cache, text(100, 4));
  const auto kept = create_committed(cache, text(200, 4));
  const auto early = cache.begin_step(std::array{first}).value();
  const auto late = cache.begin_step(std::array{second}).value();
  CHECK(cache.create_sequence(text(300, 4)).error().step == step_id{});
  REQUIRE(cache.release(first));
  REQUIRE(cache.release(second));

  const auto two = cache.create_sequence(text(300, 8)).error();
  CHECK(two.code == error_code::capacity_exhausted);
  CHECK(two.step == early);
  CHECK(two.limit == 0);
  CHECK(two.message() ==
        "capacity exhausted: number of blocks needed, more than there are now, is 2, limit 0, until step 1 retires");
  CHECK(cache.create_sequence(text(300, 12)).error().step == late);

  const auto four = cache.create_sequence(text(300, 16)).error();
  CHECK(four.code == error_code::capacity_exhausted);
  CHECK(four.step == step_id{});
  CHECK(four.limit == 3);  // with those that wait

  REQUIRE(cache.retire_step(early));
  CHECK(cache.create_sequence(text(300, 8)));
  REQUIRE(cache.retire_step(late));
  REQUIRE(cache.release(kept));
}

TEMPLATE_TEST_CASE("blocks evicted ahead of need have no other use before the step that reads them retires",
                   "[cache][steps]", single_thread, rw_lock, sharded_mutex, lock_free) {
  auto cache = kv_cache<TestType, clock_sweep>{small_cache(4)};
  const auto cached = create_committed(cache, text(0, 12));
  const auto blocks = table_of(cache, cached);
  REQUIRE(cache.release(cached));

  const auto step = cache.begin_step({}).value();
  auto victims = std::array{no_block, no_block};
  CHECK(cache.evict(victims, step).value() == 2);
  CHECK(victims == std::array{blocks[2], blocks[1]});  // the end of the chain
  CHECK(cache.statistics().blocks == block_counts{.free = 1, .evictable = 1, .retiring = 2});
  CHECK(cache.statistics().evictions == 2);
  CHECK(num_cached(cache, text(0, 12)) == 4);
  check_sound(cache);

  const auto kept = create_committed(cache, text(100, 4));
  const auto refused = cache.create_sequence(text(200, 8)).error();
  CHECK(refused.code == error_code::capacity_exhausted);
  CHECK(refused.step == step);
  CHECK(num_cached(cache, text(0, 12)) == 4);

  REQUIRE(cache.retire_step(step));
  CHECK(cache.statistics().blocks == block_counts{.free = 2, .in_use = 1, .evictable = 1});
  check_sound(cache);
  const auto last = cache.create_sequence(text(200, 8)).value().id;
  release_all(cache, {kept, last});
}

TEMPLATE_TEST_CASE("no sequence has a block that a transfer may read, whatever comes between", "[cache][steps][random]",
                   single_thread, rw_lock, sharded_mutex, lock_free) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  auto cache = kv_cache<TestType, clock_sweep>{small_cache(12)};
  auto live = std::vector<sequence_id>{};
  auto open = std::vector<std::pair<step_id, std::vector<block_id>>>{};
  const auto take = [&](auto& from) {
    std::swap(from[random() % from.size()], from.back());
    auto taken = from.back();
    from.pop_back();
    return taken;
  };
  auto num_evicted = std::int64_t{0};
  for (auto round = 0; round < 400; ++round) {
    const auto prompt = text(static_cast<token>(random() % 4 * 100), 1 + random() % 16);
    switch (random() % 6) {
      case 0:
      case 1:
        if (const auto made = cache.create_sequence(prompt)) {
          live.push_back(made->id);
          REQUIRE(cache.commit(made->id, made->num_tokens));
        } else {
          CHECK(made.error().code == error_code::capacity_exhausted);
        }
        break;
      case 2:
        if (!live.empty()) {
          static_cast<void>(cache.append(live.back(), 7));  // may not fit
        }
        break;
      case 3:
        if (!live.empty()) {
          REQUIRE(cache.release(take(live)));
        }
        break;
      case 4:
        if (open.size() < 3) {
          const auto step = cache.begin_step({}).value();
          auto victims = std::vector<block_id>(1 + random() % 3);
          victims.resize(static_cast<std::size_t>(cache.evict(victims, step).value()));
          num_evicted += std::ssize(victims);
          open.emplace_back(step, victims);
        }
        break;
      default:
        if (!open.empty()) {
          REQUIRE(cache.retire_step(take(open).first));
        }
        break;
    }
    for (const auto id : live) {
      const auto table = table_of(cache, id);
      for (const auto& [step, victims] : open) {
        CHECK(std::ranges::find_first_of(table, victims) == table.end());
      }
    }
    check_sound(cache);
  }
  CHECK(num_evicted > 0);
  for (const auto& [step, victims] : open) {
    REQUIRE(cache.retire_step(step));
  }
  CHECK(cache.statistics().blocks.retiring == 0);
  release_all(cache, live);
}

TEST_CASE("an eviction ahead of need takes no more than is evictable, and needs an open step", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto held = create_committed(cache, text(0, 8));
  const auto cached = create_committed(cache, text(100, 4));
  REQUIRE(cache.release(cached));
  auto victims = std::array{no_block, no_block, no_block};
  CHECK(cache.evict(victims, step_id{}).error().code == error_code::unknown_step);
  CHECK(cache.evict(victims, step_id{1}).error().code == error_code::unknown_step);
  CHECK(num_cached(cache, text(100, 4)) == 4);

  const auto step = cache.begin_step({}).value();
  CHECK(cache.evict({}, step).value() == 0);
  CHECK(cache.evict(victims, step).value() == 1);
  CHECK(cache.evict(victims, step).value() == 0);
  REQUIRE(cache.retire_step(step));
  CHECK(cache.evict(victims, step).error().code == error_code::unknown_step);
  CHECK(num_cached(cache, text(0, 8)) == 8);
  release_all(cache, {held});
}

TEST_CASE("a refusal names a step that is open, also where steps retire out of order", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(2)};
  const auto first = create_committed(cache, text(0, 4));
  const auto second = create_committed(cache, text(100, 4));
  const auto early = cache.begin_step(std::array{first}).value();
  const auto late = cache.begin_step(std::array{second}).value();
  REQUIRE(cache.release(second));
  REQUIRE(cache.retire_step(late));
  const auto refused = cache.create_sequence(text(200, 4)).error();
  CHECK(refused.step == early);
  REQUIRE(cache.retire_step(refused.step));
  CHECK(cache.create_sequence(text(200, 4)));
}

TEST_CASE("a refusal counts on no block that the prompt itself shares", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(4)};
  const auto first = create_committed(cache, text(0, 8));
  const auto second = create_committed(cache, text(100, 4));
  const auto kept = create_committed(cache, text(200, 4));
  const auto early = cache.begin_step(std::array{first}).value();
  const auto late = cache.begin_step(std::array{second}).value();
  REQUIRE(cache.release(first));
  REQUIRE(cache.release(second));

  const auto one = cache.create_sequence(text(0, 9)).error();  // shares two blocks that wait for the early step
  CHECK(one.value == 1);
  CHECK(one.step == late);
  const auto two = cache.create_sequence(text(0, 13)).error();
  CHECK(two.value == 2);
  CHECK(two.step == step_id{});
  CHECK(two.limit == 1);

  REQUIRE(cache.retire_step(early));
  CHECK(cache.create_sequence(text(0, 9)).error().step == late);
  REQUIRE(cache.retire_step(late));
  CHECK(cache.create_sequence(text(0, 9)));
  REQUIRE(cache.release(kept));
}

TEST_CASE("a gain counts blocks available at once apart from blocks that wait for a step", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto used = create_committed(cache, text(0, 8));
  const auto unused = create_committed(cache, text(100, 4));
  const auto step = cache.begin_step(std::array{used}).value();
  const auto gain = cache.gain_of_releasing(std::array{used, unused}).value();
  CHECK(gain.at_once == 1);
  CHECK(gain.with_steps == 2);
  CHECK(cache.fewest_to_release(std::array{unused, used}, 1).value() == std::vector{std::size_t{0}});
  CHECK(cache.fewest_to_release(std::array{unused, used}, 2).value() == std::vector{std::size_t{0}, std::size_t{1}});
  CHECK(cache.fewest_to_release(std::array{unused, used}, 4).value().empty());
  REQUIRE(cache.retire_step(step));
  release_all(cache, {used, unused});
}

TEST_CASE("a sequence that is named twice is gained once", "[cache][steps]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 8));
  const auto other = cache.fork(id).value();
  CHECK(cache.gain_of_releasing(std::array{id, id}).value().at_once == 0);
  CHECK(cache.gain_of_releasing(std::array{id, other, id, other}).value().at_once == 2);
  REQUIRE(cache.release(other));
  CHECK(cache.gain_of_releasing(std::array{id, id}).value().at_once == 2);
  CHECK(cache.fewest_to_release(std::array{id, id}, 2).value() == std::vector{std::size_t{0}});
  release_all(cache, {id});
}

TEST_CASE("a sequence whose release gains nothing is not chosen for release", "[cache]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto survivor = create_committed(cache, text(0, 8));
  const auto sharer = cache.fork(survivor).value();
  const auto first = create_committed(cache, text(100, 8));
  const auto second = cache.fork(first).value();
  const auto own = create_committed(cache, text(200, 4));
  const auto ids = std::array{sharer, first, own, second};
  const auto chosen = [&](std::int64_t num_blocks) { return cache.fewest_to_release(ids, num_blocks).value(); };
  CHECK(chosen(1) == std::vector<std::size_t>{2});
  CHECK(chosen(2) == std::vector<std::size_t>{1, 2, 3});  // two blocks come when both that share them are released
  CHECK(chosen(4).empty());
  CHECK(chosen(0).empty());
  CHECK(cache.fewest_to_release(std::array{own}, 0).value().empty());
  CHECK(cache.fewest_to_release(std::array{own}, -1).value().empty());
  release_all(cache, {survivor, sharer, first, second, own});
}
