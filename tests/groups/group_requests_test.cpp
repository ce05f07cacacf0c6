#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>
#include <pagedkv/requests/request_tracker.hpp>

#include "../support/on_threads.hpp"
#include "group_engine.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// A tracker over a cache with groups, and what an engine does for one request.
template <class Cache>
struct tracked_groups {
  explicit tracked_groups(std::int32_t num_blocks)
      : cache(config_of({full, window, state}, num_blocks)), tracker(cache) {}

  void compute(request_id id) {
    const auto sequence = tracker.describe(id)->sequence;
    auto done = cache.describe(sequence)->num_computed_tokens;
    for (const auto end = cache.describe(sequence)->num_tokens; done < end;) {
      done = std::min(end, cache.next_saved_length(sequence).value());
      REQUIRE(cache.commit(sequence, done));
    }
  }
  [[nodiscard]] request_state state_of(request_id id) { return tracker.describe(id)->state; }

  Cache cache;
  request_tracker<Cache> tracker;
};

/// Groups whose blocks hold four tokens.
constexpr auto full_of_four = group_config{.num_layers = 1, .key_dim = 32, .value_dim = 32};
constexpr auto window_of_four =
    group_config{.kind = group_kind::window, .num_layers = 1, .key_dim = 32, .value_dim = 32, .window = 40};

/// Six blocks of four tokens, of full attention.
auto small_blocks() {
  auto config = cache_config{.block_size = 4, .num_blocks = 6};
  config.hash_seed = 1;
  config.groups = {full_of_four};
  return std::make_unique<group_cache<float32>>(config);
}

request_options with_priority(std::uint8_t priority, bool may_preempt = false) {
  auto options = request_options{};
  options.sequence.priority = priority;
  options.may_preempt = may_preempt;
  return options;
}

}  // namespace

TEMPLATE_TEST_CASE("requests over groups preempt the lowest, and resume", "[group_cache]", group_cache<float32>,
                   (group_cache<float32, rw_lock>), (group_cache<float32, sharded_mutex>)) {
  auto pool = tracked_groups<TestType>{60};
  const auto high = pool.tracker.submit(counted(60, 1000), with_priority(90)).value().id;
  pool.compute(high);
  auto others = std::vector<request_id>{};
  for (auto first = 2000;; first += 1000) {
    const auto made = pool.tracker.submit(counted(60, first), with_priority(10));
    if (!made) {
      CHECK(made.error().code == error_code::capacity_exhausted);
      break;
    }
    pool.compute(made->id);
    others.push_back(made->id);
  }
  REQUIRE(others.size() >= 2);
  const auto asked = pool.tracker.submit(counted(60, 500), with_priority(50, true));
  REQUIRE(asked);
  const auto low = others.back();
  CHECK(asked.preempted() == std::vector{low});
  CHECK(pool.state_of(low) == request_state::preempted);
  CHECK(pool.state_of(high) == request_state::running);
  pool.compute(asked->id);
  CHECK(pool.cache.check_invariants() == sound);

  REQUIRE(pool.tracker.finish(asked->id));
  REQUIRE(pool.tracker.finish(others.front()));
  const auto resumed = pool.tracker.resume(low, counted(60, 1000 + 1000 * static_cast<int>(others.size())));
  REQUIRE(resumed);
  pool.compute(low);
  for (auto i = 0; i < 20; ++i) {
    REQUIRE(pool.tracker.append(low, i));
    pool.compute(low);
  }
  for (std::size_t i = 1; i + 1 < others.size(); ++i) {
    REQUIRE(pool.tracker.finish(others[i]));
  }
  const auto forked = pool.tracker.fork(high);
  REQUIRE(forked);
  REQUIRE(pool.tracker.cancel(high));
  REQUIRE(pool.tracker.finish(forked->id));
  REQUIRE(pool.tracker.finish(low));
  CHECK(pool.cache.statistics().num_sequences == 0);
  CHECK(pool.cache.statistics().blocks.in_use == 0);
  CHECK(pool.cache.check_invariants() == sound);
}

TEST_CASE("no request over groups gives way for blocks that a step brings", "[group_cache]") {
  auto pool = small_blocks();
  auto tracker = request_tracker{*pool};
  const auto early = tracker.submit(counted(8, 100), with_priority(10)).value().id;
  const auto late = tracker.submit(counted(8, 200), with_priority(10)).value().id;
  const auto high = tracker.submit(counted(8, 300), with_priority(90)).value().id;
  const auto step = pool->begin_step().value();
  const auto refused = tracker.submit(counted(8, 400), with_priority(100, true));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().step == step);
  CHECK(refused.preempted() == std::vector{late});
  const auto longer = tracker.submit(counted(12, 500), with_priority(100, true));  // two of three blocks wait already
  REQUIRE_FALSE(longer);
  CHECK(longer.error().step == step);
  CHECK(longer.preempted() == std::vector{early});
  CHECK(tracker.describe(high)->state == request_state::running);
}

TEST_CASE("no request gives way to an append over groups that needs only a step to retire", "[group_cache]") {
  auto pool = small_blocks();
  auto tracker = request_tracker{*pool};
  const auto grows = tracker.submit(counted(7, 100), with_priority(50, true)).value();
  const auto low = tracker.submit(counted(16, 200), with_priority(1)).value().id;
  const auto step = pool->begin_step(std::array{grows.sequence}).value();
  REQUIRE(pool->truncate(grows.sequence, 6));
  const auto refused = tracker.append(grows.id, counted(1, 300));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().step == step);
  CHECK(tracker.describe(low)->state == request_state::running);
  REQUIRE(pool->retire_step(step));
  CHECK(tracker.append(grows.id, counted(1, 300)));
  CHECK(tracker.describe(low)->state == request_state::running);
}

TEST_CASE("no step brings the blocks that a prompt over groups shares", "[group_cache]") {
  auto pool = small_blocks();
  const auto used = pool->create_sequence(counted(8, 0)).value().id;
  REQUIRE(pool->commit(used, 8));
  REQUIRE(pool->create_sequence(counted(16, 100)));
  const auto step = pool->begin_step(std::array{used}).value();
  REQUIRE(pool->release(used));
  const auto refused = pool->create_sequence(counted(16, 0));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::capacity_exhausted);
  CHECK(refused.error().step == step_id{});
  CHECK(pool->would_fit(counted(16, 0)).error().step == step_id{});
  REQUIRE(pool->retire_step(step));
  CHECK_FALSE(pool->create_sequence(counted(16, 0)));
}

namespace {

/// A request has computed 24 tokens. Another one, of low rank, has published 12 of these and 12 of its own for a launch
/// that is still to come, and holds none of its first windows' blocks, which the cache had lost, any more.
template <class Cache>
struct windows_ahead {
  windows_ahead() {
    REQUIRE(cache.commit(tracker.submit(prompt, with_priority(95)).value().sequence, 24));
    auto lost = std::array<block_id, 5>{};
    const auto step = cache.begin_step(std::span<const sequence_id>{}).value();
    REQUIRE(cache.evict(lost, step).value() == std::ssize(lost));
    REQUIRE(cache.retire_step(step));
    REQUIRE(cache.begin_step());
    auto text = tokens(prompt.begin(), prompt.begin() + 12);
    std::ranges::copy(pagedkv::test::counted(12, 1000), std::back_inserter(text));
    const auto made = tracker.submit(text, with_priority(10)).value();
    REQUIRE(made.num_cached_tokens == 0);
    REQUIRE(cache.commit(made.sequence, 24));
    low = made.id;
    REQUIRE(num_found() == 12);
  }

  [[nodiscard]] static cache_config config() {
    auto made = cache_config{.block_size = 4, .num_blocks = 22, .max_sequences = 8, .hash_seed = 1};
    const auto all = group_config{.num_layers = 1, .key_dim = 16, .value_dim = 16};
    auto last = all;
    last.kind = group_kind::window;
    last.window = 4;
    made.groups = {all, last};
    return made;
  }
  /// Of the tokens that both have.
  [[nodiscard]] std::int64_t num_found() { return cache.find_prefix(std::span{prompt}.first(13)); }

  Cache cache{config()};
  request_tracker<Cache> tracker{cache};
  tokens prompt = counted(24);
  request_id low{};
};

}  // namespace

TEMPLATE_TEST_CASE("what a window lets go ahead of a launch is withdrawn with its writer", "[group_cache]",
                   group_cache<float32>, (group_cache<float32, rw_lock>), (group_cache<float32, sharded_mutex>)) {
  auto pool = windows_ahead<TestType>{};
  const auto check_held = [&] {
    const auto kept = pool.tracker.preempt(pool.low);
    REQUIRE_FALSE(kept);
    CHECK(kept.error().code == error_code::in_use);
    const auto held = pool.tracker.describe(pool.low)->sequence;
    CHECK(pool.cache.gain_of_releasing(std::array{held})->with_steps == 0);
  };
  SECTION("no other needs it") {}
  SECTION("another one shares it") {
    const auto sharing = pool.tracker.submit(std::span{pool.prompt}.first(13), with_priority(10)).value();
    REQUIRE(sharing.num_cached_tokens == 12);
    check_held();
    SECTION("and goes") { REQUIRE(pool.tracker.preempt(sharing.id)); }
    SECTION("and goes on, though it is invalidated") {
      pool.cache.invalidate_prefix(pool.prompt);
      check_held();
      REQUIRE(pool.cache.begin_step());
    }
  }
  SECTION("the request that asks for room would share it") {
    auto text = tokens(pool.prompt.begin(), pool.prompt.begin() + 12);
    std::ranges::copy(counted(28, 2000), std::back_inserter(text));
    const auto refused = pool.tracker.submit(text, with_priority(90, true));
    REQUIRE_FALSE(refused);
    CHECK(refused.preempted().empty());
    CHECK(pool.num_found() == 12);
  }
  REQUIRE(pool.tracker.preempt(pool.low));
  CHECK(pool.num_found() == 0);
  CHECK(pool.cache.check_invariants().empty());
}

TEST_CASE("with groups, what is computed is what launches have written, when a sequence gives way", "[group_cache]") {
  const auto& groups =
      GENERATE(group_list{full_of_four}, group_list{full_of_four, window_of_four}, group_list{full, state});
  const auto has_state = std::ranges::any_of(groups, [](const auto& group) { return !group.holds_tokens(); });
  auto cache = group_cache<float32>{config_of(groups)};
  const auto num_computed = [&](sequence_id id) { return cache.describe(id)->num_computed_tokens; };
  const auto earlier = cache.create_sequence(counted(9)).value().id;
  REQUIRE(cache.commit(earlier, 8));
  REQUIRE(cache.commit(earlier, 9));
  REQUIRE(cache.release(earlier));
  REQUIRE(cache.begin_step());
  SECTION("nothing of one that has started in the step, though it shares what others computed") {
    const auto made = cache.create_sequence(counted(13)).value();  // may have the record of the earlier one
    REQUIRE(made.num_cached_tokens == 8);
    if (GENERATE(false, true)) {
      REQUIRE(cache.begin_step());
      CHECK(cache.withdraw(made.id).value() == 0);
      CHECK(num_computed(made.id) == 8);
    } else {
      CHECK(cache.withdraw(made.id).value() == 0);
      CHECK(num_computed(made.id) == 0);
    }
  }
  SECTION("nor of a fork") {
    const auto parent = cache.create_sequence(counted(8, 100)).value().id;
    REQUIRE(cache.commit(parent, 8));
    REQUIRE(cache.begin_step());
    const auto forked = cache.fork(parent).value();
    CHECK(cache.withdraw(forked).value() == 0);
    CHECK(num_computed(forked) == 0);
  }
  SECTION("what an earlier step wrote of one that publishes nothing") {
    const auto id = cache.create_sequence(counted(12, 100), {.publish = false}).value().id;
    REQUIRE(cache.commit(id, 9));
    REQUIRE(cache.begin_step());
    REQUIRE(cache.commit(id, 12));
    CHECK(cache.withdraw(id).value() == 0);
    CHECK(num_computed(id) == 8);
  }
  SECTION("what an earlier step wrote, where none but that of tokens inside a block is noted") {
    const auto id = cache.create_sequence(counted(11, 100)).value().id;
    REQUIRE(cache.commit(id, 8));
    REQUIRE(cache.begin_step());
    REQUIRE(cache.commit(id, 10));
    CHECK(cache.withdraw(id).value() == 0);
    CHECK(num_computed(id) == (has_state ? 10 : 8));
    CHECK(cache.find_prefix(counted(9, 100)) == 8);
  }
  SECTION("what an earlier step wrote of one that goes on") {
    const auto id = cache.create_sequence(counted(13, 100), {.saving = {.every = 4}}).value().id;
    for (const auto end : {4, 8}) {
      REQUIRE(cache.commit(id, end));
    }
    REQUIRE(cache.begin_step());
    REQUIRE(cache.commit(id, 12));
    CHECK(cache.find_prefix(counted(14, 100)) == 12);
    REQUIRE(cache.withdraw(id));
    CHECK(num_computed(id) == 8);
    CHECK(cache.find_prefix(counted(14, 100)) == 8);
    REQUIRE(cache.release(id));
    CHECK(cache.find_prefix(counted(14, 100)) == 8);
  }
  CHECK(cache.check_invariants() == sound);
}

TEST_CASE("with groups, what a truncation cuts off ahead of its launch goes, too", "[group_cache]") {
  const auto& groups = GENERATE(group_list{full_of_four}, group_list{full_of_four, window_of_four});
  const auto num_written = GENERATE(4, 8);
  const auto size = 4;
  auto cache = group_cache<float32>{config_of(groups)};
  REQUIRE(cache.plan().groups[0].block_size == size);
  const auto text = counted(13);
  const auto before = cache.create_sequence(counted(num_written)).value().id;
  REQUIRE(cache.commit(before, num_written));
  REQUIRE(cache.begin_step());
  const auto cut = cache.create_sequence(counted(12)).value();
  REQUIRE(cut.num_cached_tokens == num_written);
  REQUIRE(cache.commit(cut.id, 12));
  SECTION("to the end of a block") {
    REQUIRE(cache.truncate(cut.id, size));
    CHECK(cache.find_prefix(text) == num_written);
    SECTION("and then withdraws") { CHECK(cache.withdraw(cut.id).value() == 0); }
    SECTION("and continues") {
      REQUIRE(cache.append(cut.id, counted(8, 100)));
      REQUIRE(cache.commit(cut.id, 12));
      CHECK(cache.withdraw(cut.id).value() == 2 * std::ssize(groups));
      auto both = counted(4);
      std::ranges::copy(counted(9, 100), std::back_inserter(both));
      CHECK(cache.find_prefix(both) == size);
    }
  }
  SECTION("within a block") {
    REQUIRE(cache.truncate(cut.id, num_written + 1));
    CHECK(cache.find_prefix(text) == num_written);
    REQUIRE(cache.append(cut.id, token{100}));
    REQUIRE(cache.commit(cut.id, num_written + 2));
    CHECK(cache.check_invariants() == sound);
    CHECK(cache.withdraw(cut.id).value() == 0);
  }
  REQUIRE(cache.release(cut.id));
  CHECK(cache.find_prefix(text) == num_written);
  CHECK(cache.check_invariants() == sound);
}

TEST_CASE("with groups, what another sequence computed, too, stays when a sequence gives way", "[group_cache]") {
  const auto& groups = GENERATE(group_list{full_of_four}, group_list{full_of_four, window_of_four});
  const auto both_ahead = GENERATE(false, true);
  CAPTURE(both_ahead);
  auto cache = group_cache<float32>{config_of(groups)};
  const auto text = counted(21);
  const auto commit_first = [&] {
    const auto id = cache.create_sequence(counted(12)).value().id;
    REQUIRE(cache.commit(id, 12));
  };
  if (!both_ahead) {
    commit_first();
  }
  REQUIRE(cache.begin_step());
  if (both_ahead) {
    commit_first();
  }
  const auto again = cache.create_sequence(std::span{text}.first(20), {.max_cached_tokens = 0}).value().id;
  REQUIRE(cache.commit(again, 20));
  REQUIRE(cache.find_prefix(text) == 20);
  SECTION("all of it") { CHECK(cache.withdraw(again).value() == 2 * std::ssize(groups)); }
  SECTION("as far as it is cut") { REQUIRE(cache.truncate(again, 8)); }
  CHECK(cache.find_prefix(text) == 12);
  REQUIRE(cache.release(again));
  CHECK(cache.find_prefix(text) == 12);
  CHECK(cache.check_invariants() == sound);
}

TEST_CASE("with groups, a sequence that gives way makes its copies findable, as far as they are written",
          "[group_cache]") {
  const auto num_shared = GENERATE(12, 16);  // with 16, others had all that it has computed ahead of its launch
  auto cache = group_cache<float32>{config_of({full_of_four})};
  const auto first = cache.create_sequence(counted(num_shared)).value().id;
  REQUIRE(cache.commit(first, num_shared));
  const auto second = cache.create_sequence(counted(16), {.max_cached_tokens = 0}).value().id;
  REQUIRE(cache.commit(second, 12));
  const auto step = cache.begin_step(std::array{second}).value();
  REQUIRE(cache.commit(second, 16));
  REQUIRE(cache.release(first));
  auto evicted = std::array<block_id, 8>{};
  REQUIRE(cache.evict(evicted, step).value() == num_shared / 4);
  CHECK(cache.find_prefix(counted(17)) == 0);
  CHECK(cache.withdraw(second).value() == (num_shared == 12 ? 1 : 0));
  CHECK(cache.find_prefix(counted(17)) == 12);
  CHECK(cache.check_invariants() == sound);
}

TEST_CASE("with groups, a sequence does not give way whose fork has what its launch is to write", "[group_cache]") {
  const auto cache = small_blocks();
  auto tracker = request_tracker{*cache};
  const auto parent = tracker.submit(counted(6), with_priority(10)).value();
  REQUIRE(cache->commit(parent.sequence, 4));
  REQUIRE(cache->begin_step());
  REQUIRE(cache->commit(parent.sequence, 6));
  const auto forked = tracker.fork(parent.id);
  REQUIRE(forked);
  CHECK(tracker.preempt(parent.id).error().code == error_code::in_use);
  REQUIRE(tracker.finish(forked->id));
  CHECK(tracker.preempt(parent.id));
  CHECK(cache->check_invariants() == sound);
}

TEST_CASE("the gain of releasing sequences of groups is what an allocation gets", "[group_cache]") {
  auto e = engine<group_cache<float32>>{config_of({full, window, state}, 120)};
  const auto first = e.create(counted(40)).value();
  e.compute(first);
  const auto second = e.create(counted(50)).value();  // shares with the first
  e.compute(second);
  const auto third = e.create(counted(30, 500)).value();
  e.compute(third);
  for (const auto& ids : {std::vector{first}, {second}, {third}, {first, second}, {first, second, third}}) {
    const auto gain = e.cache.gain_of_releasing(ids).value();
    auto other = engine<group_cache<float32>>{config_of({full, window, state}, 120)};
    auto copies = std::vector<sequence_id>{};
    for (const auto& [id, length] : std::vector<std::pair<sequence_id, int>>{{first, 40}, {second, 50}, {third, 30}}) {
      const auto same = other.create(id == third ? counted(length, 500) : counted(length)).value();
      other.compute(same);
      if (std::ranges::count(ids, id) != 0) {
        copies.push_back(same);
      }
    }
    const auto before = other.cache.num_available_blocks();
    for (const auto id : copies) {
      other.release(id);
    }
    CHECK(gain.at_once == other.cache.num_available_blocks() - before);
    CHECK(gain.with_steps == 0);
  }
  const auto all = std::vector{first, second, third};
  CHECK(e.cache.fewest_to_release(all, 1).value().size() == 1);
  CHECK(e.cache.fewest_to_release(all, 1'000).value().empty());
  const auto step = e.cache.begin_step(all).value();
  CHECK(e.cache.gain_of_releasing(all)->at_once == 0);
  CHECK(e.cache.gain_of_releasing(all)->with_steps > 0);
  REQUIRE(e.cache.retire_step(step));
}

TEST_CASE("with groups, a fork gives way where its request would copy the blocks that both end in", "[group_cache]") {
  auto e = engine<group_cache<float32>>{config_of({full, window})};
  auto tracker = request_tracker<group_cache<float32>>{e.cache};
  const auto prompt = counted(22);
  const auto parent = tracker.adopt(e.hold(prompt), {.may_preempt = true}).value();
  const auto fork = tracker.fork(parent).value();
  const auto num_blocks = e.cache.statistics().blocks.in_use;
  REQUIRE(e.cache.resize(static_cast<std::int32_t>(num_blocks)));
  CHECK(tracker.append(fork.id, 5).error().code == error_code::capacity_exhausted);  // none ranks below

  const auto appended = tracker.append(parent, 5);
  CHECK(appended);
  CHECK(appended.preempted() == std::vector{fork.id});
  CHECK(e.cache.statistics().blocks.in_use == num_blocks);
  CHECK(e.cache.statistics().copies == 0);
  CHECK(e.cache.check_invariants() == sound);
}

TEST_CASE("with groups, a request gives way in a step that fills no block, though a fork has its last one",
          "[group_cache]") {
  const auto cache = small_blocks();
  auto tracker = request_tracker{*cache};
  auto options = with_priority(10);
  options.sequence.publish = false;
  const auto parent = tracker.submit(counted(6), options).value();
  REQUIRE(cache->commit(parent.sequence, 6));
  REQUIRE(tracker.fork(parent.id));
  const auto step = cache->begin_step().value();
  REQUIRE(cache->commit(parent.sequence, 6));
  CHECK(tracker.preempt(parent.id));
  REQUIRE(cache->retire_step(step));
  CHECK(cache->check_invariants() == sound);
}

TEST_CASE("threads submit, append and preempt over groups under a reader-writer lock", "[group_cache]") {
  auto pool = tracked_groups<group_cache<float32, rw_lock>>{90};
  auto num_done = std::atomic<int>{0};
  const auto work = [&](int thread) {
    for (auto round = 0; round < 60; ++round) {
      const auto made = pool.tracker.submit(counted(20 + round % 20, 100 * (round % 4)),
                                            with_priority(static_cast<std::uint8_t>(20 + thread), round % 2 == 0));
      if (!made) {
        continue;
      }
      static_cast<void>(pool.cache.commit(made->sequence, made->num_tokens));  // it may be preempted meanwhile
      for (auto i = 0; i < 6; ++i) {
        static_cast<void>(pool.tracker.append(made->id, i));
      }
      num_done += pool.tracker.finish(made->id).has_value();
    }
  };
  on_threads(4, work);
  CHECK(num_done > 0);
  CHECK(pool.cache.statistics().num_sequences == 0);
  CHECK(pool.cache.statistics().blocks.in_use == 0);
  CHECK(pool.cache.check_invariants() == sound);
}
