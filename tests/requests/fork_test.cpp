#include "tracked_cache.hpp"

#include <catch2/catch_template_test_macros.hpp>

#include <array>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::test;

TEMPLATE_LIST_TEST_CASE("a fork shares the blocks of its request and ends by itself", "[requests]", caches) {
  auto under_test = tracked_cache<TestType>{8};
  auto& tracker = under_test.tracker;
  const auto tokens = under_test.fresh_tokens(2 * block_size + 1);
  const auto parent = under_test.running_on(tokens, with_priority(70, true));
  under_test.cache.advance_time(timestamp{30});
  const auto fork = tracker.fork(parent);
  REQUIRE(fork);
  CHECK(fork->id != parent);
  CHECK(under_test.in_use() == 3);
  const auto described = tracker.describe(fork->id).value();
  CHECK(described.state == request_state::running);
  CHECK(described.sequence == fork->sequence);
  CHECK(described.options.sequence.priority == 70);
  CHECK(described.options.may_preempt);
  CHECK(described.submitted == timestamp{30});
  CHECK(described.arrival > tracker.describe(parent)->arrival);
  CHECK(under_test.cache.describe(fork->sequence)->num_computed_tokens == 2 * block_size + 1);

  REQUIRE(tracker.append(fork->id, under_test.fresh_tokens(1)));  // copies the last block
  CHECK(under_test.in_use() == 4);
  REQUIRE(tracker.append(parent, under_test.fresh_tokens(2)));
  CHECK(under_test.in_use() == 4);
  REQUIRE(tracker.finish(parent));
  CHECK(under_test.state(fork->id) == request_state::running);
  CHECK(under_test.in_use() == 3);
  REQUIRE(tracker.cancel(fork->id));
  CHECK(under_test.in_use() == 0);
  CHECK(tracker.statistics().submitted == 2);
  under_test.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a fork is preempted and resumed by itself", "[requests]", caches) {
  auto under_test = tracked_cache<TestType>{8};
  auto& tracker = under_test.tracker;
  auto tokens = under_test.fresh_tokens(2 * block_size);
  const auto parent = under_test.running_on(tokens);
  const auto fork = tracker.fork(parent).value().id;
  const auto own = under_test.fresh_tokens(1);
  REQUIRE(tracker.append(fork, own));
  REQUIRE(tracker.preempt(fork));
  CHECK(under_test.in_use() == 2);
  CHECK(code_of(tracker.fork(fork)) == error_code::preempted);
  tokens.push_back(own.front());
  const auto resumed = tracker.resume(fork, tokens);
  REQUIRE(resumed);
  CHECK(resumed->id == fork);
  CHECK(resumed->num_cached_tokens == 2 * block_size);
  CHECK(under_test.in_use() == 3);
  under_test.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a fork gives way where its request would copy the block that both end in", "[requests]",
                         caches) {
  auto under_test = tracked_cache<TestType>{3};
  auto& tracker = under_test.tracker;
  const auto parent = under_test.running_on(under_test.fresh_tokens(2 * block_size + 1), with_priority(50, true));
  const auto fork = tracker.fork(parent).value().id;
  const auto second = tracker.fork(parent).value().id;  // the pool is full, of blocks that all three have
  CHECK(code_of(tracker.append(second, under_test.fresh_tokens(1))) == error_code::capacity_exhausted);
  const auto sequence = under_test.sequence(parent);
  const auto one = std::array{under_test.sequence(second)};
  CHECK(under_test.cache.fewest_to_release(one, 1, {}, salt::none, sequence)->empty());

  const auto appended = tracker.append(parent, under_test.fresh_tokens(2));
  CHECK(appended);
  CHECK(appended.preempted() == std::vector{second, fork});
  CHECK(under_test.in_use() == 3);
  CHECK(under_test.cache.describe(sequence)->num_tokens == 2 * block_size + 3);
  under_test.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a request gives way in a step that fills no block, though a fork has its last one",
                        "[requests]", caches) {
  auto under_test = tracked_cache<TestType>{8};
  auto options = with_priority(70);
  options.sequence.publish = false;
  constexpr auto length = block_size + 2;
  const auto parent = under_test.running_on(under_test.fresh_tokens(length), options);
  REQUIRE(under_test.tracker.fork(parent));
  const auto step = under_test.cache.begin_step();
  REQUIRE(step);
  REQUIRE(under_test.cache.commit(under_test.sequence(parent), length));
  CHECK(under_test.tracker.preempt(parent));
  CHECK(under_test.state(parent) == request_state::preempted);
  REQUIRE(under_test.cache.retire_step(*step));
  under_test.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("forks count against the limit of open requests", "[requests]", caches) {
  auto under_test = tracked_cache<TestType>{8, {.max_open = 2}};
  const auto parent = under_test.running(1);
  const auto fork = under_test.tracker.fork(parent);
  REQUIRE(fork);
  const auto refused = under_test.tracker.fork(parent);
  CHECK(code_of(refused) == error_code::limit_reached);
  CHECK(refused.error().limit == 2);
  CHECK(under_test.tracker.statistics().refused == 1);
  REQUIRE(under_test.tracker.finish(fork->id));
  CHECK(under_test.tracker.fork(parent));
}

TEMPLATE_LIST_TEST_CASE("a refused fork tells why and leaves no trace but a count", "[requests]", caches) {
  auto under_test = tracked_cache<TestType>{8};
  auto& tracker = under_test.tracker;
  const auto parent = under_test.running(1);
  REQUIRE(tracker.append(parent, under_test.fresh_tokens(1)));
  CHECK(code_of(tracker.fork(parent)) == error_code::invalid_argument);  // a token is not committed
  CHECK(tracker.statistics().refused == 1);
  CHECK(tracker.statistics().running == 1);
  CHECK(under_test.in_use() == 2);
  REQUIRE(under_test.cache.release(under_test.sequence(parent)));
  CHECK(code_of(tracker.fork(parent)) == error_code::unknown_sequence);
  REQUIRE(tracker.finish(parent));
  CHECK(code_of(tracker.fork(parent)) == error_code::already_ended);
  CHECK(code_of(tracker.fork(request_id{})) == error_code::unknown_request);
  under_test.check_invariants();
}

TEST_CASE("a fork for which the cache has no sequence is refused", "[requests]") {
  auto cache = kv_cache<>{{.block_size = block_size, .num_blocks = 4, .head_dim = 2, .max_sequences = 1}};
  auto tracker = request_tracker{cache};
  const auto made = tracker.submit(std::vector<token>(1, 1)).value();
  REQUIRE(cache.commit(made.sequence, 1));
  const auto refused = tracker.fork(made.id);
  CHECK(code_of(refused) == error_code::limit_reached);
  CHECK(refused.error().limit == 1);
}

}  // namespace
