#include "../support/recording_backend.hpp"
#include "../support/messages.hpp"
#include "tracked_cache.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <utility>

namespace {

using namespace pagedkv;
using namespace pagedkv::test;

constexpr auto endings = std::array{request_state::finished, request_state::cancelled, request_state::failed};

template <class Cache>
result<void> end(request_tracker<Cache>& tracker, request_id id, request_state how) {
  switch (how) {
    case request_state::finished: return tracker.finish(id);
    case request_state::cancelled: return tracker.cancel(id);
    default: return tracker.fail(id, some_failure);
  }
}

TEMPLATE_LIST_TEST_CASE("requests of one tracker are unknown to another", "[requests]", caches) {
  auto mine = tracked_cache<TestType>{16};
  auto other = tracked_cache<TestType>{16};
  const auto id = mine.running(3);
  const auto same_place = other.running(3);
  CHECK(code_of(other.tracker.describe(id)) == error_code::unknown_request);
  CHECK(code_of(other.tracker.append(id, other.fresh_tokens(1))) == error_code::unknown_request);
  CHECK(code_of(other.tracker.preempt(id)) == error_code::unknown_request);
  for (const auto how : endings) {
    CHECK(code_of(end(other.tracker, id, how)) == error_code::unknown_request);
  }
  CHECK(other.state(same_place) == request_state::running);
}

TEMPLATE_LIST_TEST_CASE("a request ends once, and its blocks go back", "[requests]", caches) {
  for (const auto how : endings) {
    auto under_test = tracked_cache<TestType>{16};
    auto& tracker = under_test.tracker;
    const auto id = under_test.running(3);
    CHECK(under_test.state(id) == request_state::running);
    CHECK(under_test.in_use() == 3);
    under_test.cache.advance_time(timestamp{50});

    REQUIRE(end(tracker, id, how));
    CHECK(under_test.in_use() == 0);
    const auto ended = tracker.describe(id).value();
    CHECK(ended.state == how);
    CHECK(ended.sequence == sequence_id{});
    CHECK(ended.ended == timestamp{50});
    CHECK(ended.failure.has_value() == (how == request_state::failed));

    for (const auto again : endings) {
      CHECK(code_of(end(tracker, id, again)) == error_code::already_ended);
    }
    CHECK(code_of(tracker.preempt(id)) == error_code::already_ended);
    CHECK(code_of(tracker.append(id, under_test.fresh_tokens(1))) == error_code::already_ended);
    CHECK(code_of(tracker.resume(id, under_test.fresh_tokens(1))) == error_code::already_ended);
    CHECK(under_test.state(id) == how);
    const auto counted = tracker.statistics();
    CHECK(counted.finished + counted.cancelled + counted.failed == 1);
    CHECK(counted.running == 0);
    under_test.check_invariants();
  }
}

TEST_CASE("a refusal of a tracker says which request, or how many", "[requests][messages]") {
  auto under_test = tracked_cache<minimal_cache>{16, {.max_open = 2}};
  auto& tracker = under_test.tracker;
  const auto tokens = under_test.fresh_tokens(1);
  const auto running = under_test.running(1);
  const auto preempted = under_test.running(1);
  const auto refused = said(tracker.submit(tokens));
  REQUIRE(tracker.preempt(preempted));
  const auto name = [](request_id id) { return std::to_string(static_cast<std::uint64_t>(id)); };
  constexpr auto most = std::numeric_limits<std::int32_t>::max();
  check_messages({
      {refused,
       "limit reached: number of requests that have not ended, at most tracker_config.max_open, is 3, limit 2"},
      {said(tracker.append(request_id{9}, tokens)), "unknown request: request id is 9"},
      {said(tracker.append(preempted, tokens)), "preempted: id of a request to resume first is " + name(preempted)},
      {said(tracker.resume(running, tokens)), "not preempted: id of a running request is " + name(running)},
      {said(validate(tracker_config{.max_open = -1})), invalid("tracker_config.max_open is -1, limit 0")},
      {said(validate(tracker_config{.max_age = -1})), invalid("tracker_config.max_age is -1, limit 0")},
      {said(validate(tracker_config{.max_open = most, .max_ended = 1})),
       "size overflow: tracker_config.max_open + max_ended is 2147483648, limit 2147483647"},
  });
  REQUIRE(tracker.cancel(running));
  CHECK(said(tracker.finish(running)) == "already ended: request id is " + name(running));
}

TEMPLATE_LIST_TEST_CASE("a tracker survives changes that the engine makes to a sequence directly", "[requests]",
                        caches) {
  auto under_test = tracked_cache<TestType>{16};
  const auto id = under_test.running(3);
  REQUIRE(under_test.cache.release(under_test.tracker.describe(id)->sequence));
  CHECK(code_of(under_test.tracker.append(id, under_test.fresh_tokens(1))) == error_code::unknown_sequence);
  CHECK(under_test.tracker.finish(id));
  CHECK(under_test.in_use() == 0);
  under_test.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("the prompt of a request ends where it ended before a preemption", "[requests]", caches) {
  auto under_test = tracked_cache<TestType>{16};
  auto& cache = under_test.cache;
  auto& tracker = under_test.tracker;
  auto tokens = under_test.fresh_tokens(6);
  const auto id = under_test.running_on(tokens);
  REQUIRE(tracker.append(id, token{-1}));
  tokens.push_back(-1);
  REQUIRE(tracker.preempt(id));
  const auto resumed = tracker.resume(id, tokens).value();
  CHECK(cache.describe(resumed.sequence)->num_prompt_tokens == 6);
  CHECK(cache.describe(resumed.sequence)->num_tokens == 7);
  CHECK(std::as_const(tracker).describe(id)->options.sequence.num_prompt_tokens == 6);
  CHECK(std::as_const(tracker).statistics().running == 1);
  REQUIRE(cache.commit(resumed.sequence, 7));
  const auto sample = tracker.fork(id).value();
  REQUIRE(tracker.preempt(sample.id));
  CHECK(cache.describe(tracker.resume(sample.id, tokens)->sequence)->num_prompt_tokens == 6);
  REQUIRE(tracker.finish(sample.id));
  REQUIRE(tracker.finish(id));
  under_test.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a preempted request holds nothing until it is resumed", "[requests]", caches) {
  auto under_test = tracked_cache<TestType>{16};
  auto& tracker = under_test.tracker;
  const auto tokens = under_test.fresh_tokens(3 * block_size + 1);
  const auto id = under_test.running_on(tokens);
  CHECK(code_of(tracker.resume(id, tokens)) == error_code::not_preempted);

  REQUIRE(tracker.preempt(id));
  CHECK(under_test.state(id) == request_state::preempted);
  CHECK(under_test.in_use() == 0);
  CHECK(code_of(tracker.preempt(id)) == error_code::preempted);
  CHECK(code_of(tracker.append(id, tokens)) == error_code::preempted);

  const auto resumed = tracker.resume(id, tokens);
  REQUIRE(resumed);
  CHECK(resumed->id == id);
  CHECK(resumed->num_cached_tokens == 3 * block_size);
  CHECK(resumed->num_tokens == 3 * block_size + 1);
  CHECK(resumed->num_blocks == 4);
  CHECK(resumed->num_new_blocks == 1);
  CHECK(under_test.state(id) == request_state::running);
  CHECK(tracker.describe(id)->num_preemptions == 1);

  REQUIRE(tracker.preempt(id));
  REQUIRE(tracker.cancel(id));
  CHECK(under_test.in_use() == 0);
  CHECK(tracker.statistics().preempted == 0);
  CHECK(tracker.statistics().preemptions == 2);
  under_test.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a refused request leaves no trace but a count", "[requests]", caches) {
  auto under_test = tracked_cache<TestType>{4};
  const auto id = under_test.running(3);
  const auto before = under_test.cache.statistics();
  CHECK(code_of(under_test.tracker.submit(under_test.fresh_tokens(2 * block_size))) == error_code::capacity_exhausted);
  CHECK(code_of(under_test.tracker.append(id, under_test.fresh_tokens(2 * block_size))) ==
        error_code::never_fits);
  CHECK(code_of(under_test.tracker.submit({}, with_priority(101))) == error_code::invalid_argument);
  const auto after = under_test.cache.statistics();
  CHECK(after.blocks == before.blocks);
  CHECK(after.num_tokens == before.num_tokens);
  CHECK(under_test.tracker.statistics().refused == 2);
  CHECK(under_test.tracker.statistics().submitted == 1);
  under_test.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("records of ended requests are kept up to a count", "[requests]", caches) {
  auto under_test = tracked_cache<TestType>{16, {.max_ended = 3}};
  auto& tracker = under_test.tracker;
  auto ids = std::vector<request_id>{};
  for (auto i = 0; i < 5; ++i) {
    ids.push_back(under_test.running(1));
    REQUIRE(tracker.finish(ids.back()));
  }
  CHECK(tracker.statistics().kept_records == 3);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto found = tracker.describe(ids[i]);
    CHECK(found.has_value() == (i >= 2));
    CHECK((found || found.error().code == error_code::unknown_request));
  }

  // The cells of forgotten records are taken again; their old ids stay unknown.
  const auto running = under_test.running(1);
  for (const auto stale : {ids[0], ids[1]}) {
    CHECK(stale != running);
    CHECK(code_of(tracker.finish(stale)) == error_code::unknown_request);
    CHECK(code_of(tracker.preempt(stale)) == error_code::unknown_request);
    CHECK(code_of(tracker.append(stale, under_test.fresh_tokens(1))) == error_code::unknown_request);
    CHECK(code_of(tracker.resume(stale, under_test.fresh_tokens(1))) == error_code::unknown_request);
  }
  for (const auto never :
       {std::uint64_t{0}, ~std::uint64_t{0}, static_cast<std::uint64_t>(running) + (std::uint64_t{1} << 33)}) {
    CHECK(code_of(tracker.cancel(static_cast<request_id>(never))) == error_code::unknown_request);
  }
  CHECK(under_test.state(running) == request_state::running);
  CHECK(under_test.in_use() == 1);
}

TEST_CASE("with no records kept, an ended request is unknown at once", "[requests]") {
  auto under_test = tracked_cache<kv_cache<>>{16, {.max_ended = 0}};
  const auto id = under_test.running(1);
  REQUIRE(under_test.tracker.finish(id));
  CHECK(code_of(under_test.tracker.finish(id)) == error_code::unknown_request);
  CHECK(under_test.tracker.statistics().kept_records == 0);
}

TEMPLATE_LIST_TEST_CASE("records are purged by age in the cache's time", "[requests]", caches) {
  auto under_test = tracked_cache<TestType>{16, {.max_ended = 10, .max_age = 100}};
  auto& tracker = under_test.tracker;
  const auto end_at = [&](std::int64_t time) {
    const auto id = under_test.running(1);
    under_test.cache.advance_time(timestamp{time});
    REQUIRE(tracker.finish(id));
    return id;
  };
  const auto first = end_at(0);
  const auto second = end_at(60);
  under_test.cache.advance_time(timestamp{100});
  tracker.purge();
  CHECK(tracker.describe(first).has_value());  // exactly as old as is allowed

  under_test.cache.advance_time(timestamp{101});
  CHECK(tracker.describe(first).has_value());
  tracker.purge();
  CHECK(code_of(tracker.describe(first)) == error_code::unknown_request);
  CHECK(tracker.describe(second).has_value());

  const auto third = end_at(500);  // the end of a request purges, too
  CHECK(code_of(tracker.describe(second)) == error_code::unknown_request);
  CHECK(tracker.describe(third).has_value());
  CHECK(tracker.statistics().kept_records == 1);
}

TEMPLATE_LIST_TEST_CASE("running and preempted requests together stay below a limit", "[requests]", caches) {
  auto under_test = tracked_cache<TestType>{16, {.max_open = 2, .max_ended = 5}};
  auto& tracker = under_test.tracker;
  const auto first = under_test.running(1);
  const auto second = under_test.running(1);
  REQUIRE(tracker.preempt(first));
  const auto refused = tracker.submit(under_test.fresh_tokens(1));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::limit_reached);
  CHECK(refused.error().limit == 2);
  REQUIRE(tracker.finish(second));
  CHECK(tracker.submit(under_test.fresh_tokens(1)));
  CHECK(code_of(tracker.submit(under_test.fresh_tokens(1))) == error_code::limit_reached);
  CHECK(tracker.statistics().refused == 2);
}

TEST_CASE("without a limit of its own, a tracker follows twice as many requests as the cache has sequences",
          "[requests]") {
  auto cache = kv_cache<>{{.block_size = block_size, .num_blocks = 4, .head_dim = 2, .max_sequences = 3}};
  auto tracker = request_tracker{cache};
  for (auto i = 0; i < 6; ++i) {
    const auto made = tracker.submit(std::vector<token>(1, i));
    REQUIRE(made);
    REQUIRE(tracker.preempt(made->id));
  }
  const auto refused = tracker.submit(std::vector<token>(1, 7));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::limit_reached);
  CHECK(refused.error().limit == 6);
}

TEST_CASE("a copy on write of a request runs on the caller's stream", "[requests]") {
  auto log = recording_backend::log{};
  using recorded_cache = kv_cache<float32, recording_backend>;
  auto cache = recorded_cache{{.block_size = block_size, .num_blocks = 4, .head_dim = 2}, {}, recording_backend{log}};
  auto tracker = request_tracker{cache};
  const auto tokens = std::vector<token>(block_size + 1, 5);
  const auto submitted = tracker.submit(tokens).value();
  REQUIRE(cache.commit(submitted.sequence, std::ssize(tokens)));
  const auto forked = cache.fork(submitted.sequence);
  REQUIRE(forked);
  CHECK(log.calls.empty());
  REQUIRE(tracker.append(submitted.id, tokens, 3));
  CHECK(log.calls == std::vector{std::pair{std::string{"copy"}, 3}});
  REQUIRE(cache.release(*forked));
}

TEST_CASE("an operation that does not end keeps no other request from being released", "[requests]") {
  auto log = recording_backend::log{};
  using recorded_cache = kv_cache<float32, lock_free, clock_sweep, recording_backend>;
  auto cache = recorded_cache{{.block_size = block_size, .num_blocks = 16, .head_dim = 2}, {}, recording_backend{log}};
  auto tracker = request_tracker{cache};
  auto forks = std::vector<sequence_id>{};
  const auto start = [&](token first) {
    const auto started = tracker.submit(std::vector<token>(block_size + 1, first)).value();
    REQUIRE(cache.commit(started.sequence, block_size + 1));
    forks.push_back(cache.fork(started.sequence).value());  // so that an append copies
    return started;
  };
  const auto slow = start(1);
  const auto quick = start(2);
  const auto next = std::vector<token>{3};
  auto quick_is_gone = false;
  log.during_copy = [&](int on) {
    if (on == 1) {
      static_cast<void>(tracker.append(quick.id, next, 2));
      tracker.purge();
      quick_is_gone = !cache.describe(quick.sequence);
    } else {  // both are busy
      static_cast<void>(tracker.cancel(quick.id));
      static_cast<void>(tracker.cancel(slow.id));
    }
  };
  REQUIRE(tracker.append(slow.id, next, 1));
  CHECK(quick_is_gone);
  tracker.purge();
  CHECK(code_of(cache.describe(slow.sequence)) == error_code::unknown_sequence);
  for (const auto fork : forks) {
    REQUIRE(cache.release(fork));
  }
  CHECK(cache.check_invariants().empty());
}

TEST_CASE("an invalid configuration of a tracker is refused by field", "[requests][random]") {
  auto cache = kv_cache<>{{.num_blocks = 4}};
  CHECK_THROWS_AS(request_tracker(cache, {.max_open = -1}), pagedkv::exception);
  CHECK_THROWS_AS(request_tracker(cache, {.max_ended = -1}), pagedkv::exception);
  CHECK_THROWS_AS(request_tracker(cache, {.max_age = -1}), pagedkv::exception);
  CHECK(validate(tracker_config{}));
  CHECK(validate(tracker_config{.max_ended = -2}).error().subject == std::string{"tracker_config.max_ended"});
  CHECK(validate(tracker_config{.max_ended = -2}).error().value == -2);
  const auto most = std::numeric_limits<std::int32_t>::max();
  CHECK(validate(tracker_config{.max_open = most, .max_ended = 0}));
  CHECK(code_of(validate(tracker_config{.max_open = most, .max_ended = 1})) == error_code::size_overflow);
}

TEMPLATE_LIST_TEST_CASE("a destroyed tracker releases running requests", "[requests]", caches) {
  auto cache = TestType{{.block_size = block_size, .num_blocks = 16}};
  {
    auto tracker = request_tracker{cache};
    const auto tokens = std::vector<token>(3 * block_size, 5);
    const auto ended = tracker.submit(tokens);
    REQUIRE(ended);
    REQUIRE(tracker.finish(ended->id));
    REQUIRE(tracker.submit(tokens));
    REQUIRE(tracker.submit(tokens));
    CHECK(cache.statistics().num_sequences == 2);
  }
  CHECK(cache.statistics().num_sequences == 0);
  CHECK(cache.statistics().blocks.in_use == 0);
}

TEMPLATE_LIST_TEST_CASE("blocks of a request that ends within a step wait for it", "[requests]", caches) {
  auto under_test = tracked_cache<TestType>{8};
  const auto id = under_test.running(3);
  const auto step = under_test.cache.begin_step();
  REQUIRE(step);
  REQUIRE(under_test.tracker.cancel(id));
  CHECK(under_test.in_use() == 0);
  CHECK(under_test.cache.statistics().blocks.retiring == 3);
  CHECK(code_of(under_test.tracker.submit(under_test.fresh_tokens(6 * block_size))) == error_code::capacity_exhausted);
  REQUIRE(under_test.cache.retire_step(*step));
  CHECK(under_test.cache.statistics().blocks.retiring == 0);
  CHECK(under_test.tracker.submit(under_test.fresh_tokens(6 * block_size)));
  under_test.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a thousand requests that end in any order and way leave nothing", "[requests][random]",
                        caches) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  const auto below = [&](std::size_t bound) { return random() % bound; };

  constexpr auto max_ended = std::int32_t{50};
  auto under_test = tracked_cache<TestType>{64, {.max_ended = max_ended}};
  auto& tracker = under_test.tracker;
  auto alive = std::vector<std::pair<request_id, std::vector<token>>>{};
  const auto end_one = [&] {
    std::swap(alive[below(alive.size())], alive.back());
    REQUIRE(end(tracker, alive.back().first, endings[below(endings.size())]));
    alive.pop_back();
  };

  const auto start = [&](const std::vector<token>& tokens, const request_options& options) -> result<submission> {
    if (below(4) != 0) {
      return tracker.submit(tokens, options).outcome();
    }
    const auto made = under_test.cache.create_sequence(tokens, options.sequence);
    return made ? result<submission>{submission_of(tracker.adopt(made->id, options).value(), *made)} : made.error();
  };

  for (auto num_submitted = 0; num_submitted < 1000;) {
    auto tokens = std::vector<token>(1 + below(6 * block_size));
    std::ranges::generate(tokens, [&] { return static_cast<token>(below(2)); });  // many share prefixes
    auto options = with_priority(static_cast<std::uint8_t>(below(101)), below(2) == 0);
    if (const auto submitted = start(tokens, options)) {
      REQUIRE(under_test.cache.commit(submitted->sequence, static_cast<std::int64_t>(tokens.size())));
      alive.emplace_back(submitted->id, tokens);
      ++num_submitted;
    } else {
      REQUIRE(submitted.error().code == error_code::capacity_exhausted);
      end_one();
    }
    for (auto& [id, so_far] : alive) {
      if (below(8) == 0) {
        if (under_test.state(id) == request_state::preempted) {
          static_cast<void>(tracker.resume(id, so_far));
        } else if (below(4) == 0) {
          REQUIRE(tracker.preempt(id));
        } else if (tracker.append(id, std::vector<token>{1})) {
          so_far.push_back(1);
        }
      }
    }
    while (alive.size() > 20) {
      end_one();
    }
    if (num_submitted % 50 == 0) {
      under_test.check_invariants();
    }
    CHECK(tracker.statistics().kept_records <= max_ended);
  }
  while (!alive.empty()) {
    end_one();
  }

  CHECK(under_test.in_use() == 0);
  const auto counted = tracker.statistics();
  CHECK(counted.submitted == 1000);
  CHECK(counted.finished + counted.cancelled + counted.failed == 1000);
  CHECK(counted.running + counted.preempted == 0);
  CHECK(counted.kept_records == max_ended);
  under_test.check_invariants();
}

}  // namespace
