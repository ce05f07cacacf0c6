#include "tracked_cache.hpp"

#include <catch2/catch_template_test_macros.hpp>

#include <array>

namespace {

using namespace pagedkv;
using namespace pagedkv::test;

/// Eight blocks, all held by four requests of two blocks each.
template <class Cache>
struct full_pool : tracked_cache<Cache> {
  full_pool() : tracked_cache<Cache>{8} {}

  request_id middle = this->running(2, with_priority(50));
  request_id low_early = this->running(2, with_priority(10));
  request_id low_late = this->running(2, with_priority(10));
  request_id high = this->running(2, with_priority(90));

  [[nodiscard]] std::vector<request_id> preempted() {
    auto found = std::vector<request_id>{};
    for (const auto id : {middle, low_early, low_late, high}) {
      if (this->state(id) == request_state::preempted) {
        found.push_back(id);
      }
    }
    return found;
  }
};

TEMPLATE_LIST_TEST_CASE("the lowest priority gives way first, of equals the latest", "[requests]", caches) {
  auto pool = full_pool<TestType>{};
  CHECK(pool.tracker.submit(pool.fresh_tokens(2 * block_size), with_priority(50, true)));
  CHECK(pool.preempted() == std::vector{pool.low_late});
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("as many give way as it takes, and no more", "[requests]", caches) {
  auto pool = full_pool<TestType>{};
  CHECK(pool.tracker.submit(pool.fresh_tokens(3 * block_size), with_priority(50, true)));
  CHECK(pool.preempted() == std::vector{pool.low_early, pool.low_late});
  CHECK(pool.tracker.statistics().preemptions == 2);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("when all that rank below would not be enough, none gives way", "[requests]", caches) {
  auto pool = full_pool<TestType>{};
  const auto before = pool.cache.statistics().blocks;
  // The other request of priority 50 arrived before this one.
  const auto refused = pool.tracker.submit(pool.fresh_tokens(5 * block_size), with_priority(50, true));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::capacity_exhausted);
  CHECK(pool.preempted().empty());
  CHECK(pool.cache.statistics().blocks == before);

  CHECK(pool.tracker.submit(pool.fresh_tokens(5 * block_size), with_priority(51, true)));
  CHECK(pool.preempted() == std::vector{pool.middle, pool.low_early, pool.low_late});
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("for a request that the pool can never hold, none gives way", "[requests]", caches) {
  auto pool = full_pool<TestType>{};
  const auto refused = pool.tracker.submit(pool.fresh_tokens(9 * block_size), with_priority(100, true));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::never_fits);
  CHECK(refused.error().value == 9);
  CHECK(refused.error().limit == 8);
  const auto grown = pool.tracker.append(pool.high, pool.fresh_tokens(6 * block_size + 1));
  REQUIRE_FALSE(grown);
  CHECK(grown.error().code == error_code::never_fits);
  CHECK(pool.preempted().empty());
  CHECK(pool.tracker.statistics().refused == 1);
}

TEST_CASE("where cached blocks are never evicted, preemption that would only cache more is no gain", "[requests]") {
  auto pool = full_pool<kv_cache<no_eviction>>{};
  CHECK_FALSE(pool.tracker.submit(pool.fresh_tokens(2 * block_size), with_priority(100, true)));
  CHECK(pool.preempted().empty());
}

TEST_CASE("a request without a free record preempts none", "[requests]") {
  auto cache = kv_cache<>{{.block_size = block_size, .num_blocks = 4, .head_dim = 2, .max_sequences = 2}};
  auto tracker = request_tracker{cache, {.max_open = 4, .max_ended = 0}};
  auto last = submission{};
  for (auto i = 0; i < 4; ++i) {
    if (i != 0) {
      REQUIRE(tracker.preempt(last.id));
    }
    last = tracker.submit(std::vector<token>(4 * block_size, i), with_priority(10)).value();
  }
  const auto refused = tracker.submit(std::vector<token>(block_size, 9), with_priority(90, true));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::limit_reached);
  CHECK(tracker.describe(last.id)->state == request_state::running);
  CHECK(tracker.statistics().refused == 1);
}

TEMPLATE_LIST_TEST_CASE("a block that is shared but for the last token of a prompt is a gain", "[requests]", caches) {
  auto pool = tracked_cache<TestType>{4};
  const auto tokens = pool.fresh_tokens(4 * block_size);
  const auto low = pool.running_on(tokens, with_priority(10));
  const auto same = pool.tracker.submit(tokens, with_priority(90, true));
  REQUIRE(same);
  CHECK(same->num_cached_tokens == 3 * block_size);
  CHECK(pool.state(low) == request_state::preempted);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("without permission to preempt, no request gives way", "[requests]", caches) {
  auto pool = full_pool<TestType>{};
  CHECK_FALSE(pool.tracker.submit(pool.fresh_tokens(block_size), with_priority(100)));
  CHECK(pool.preempted().empty());
}

TEMPLATE_LIST_TEST_CASE("evictable blocks are taken before a request gives way", "[requests]", caches) {
  auto pool = full_pool<TestType>{};
  REQUIRE(pool.tracker.finish(pool.high));
  CHECK(pool.cache.statistics().blocks.evictable == 2);
  CHECK(pool.tracker.submit(pool.fresh_tokens(2 * block_size), with_priority(100, true)));
  CHECK(pool.preempted().empty());
  CHECK(pool.cache.statistics().evictions == 2);
}

TEMPLATE_LIST_TEST_CASE("a growing request takes blocks of lower ones, never its own", "[requests]", caches) {
  auto pool = full_pool<TestType>{};
  const auto grows = pool.running(2, with_priority(20, true));  // in place of the later low one
  REQUIRE(pool.preempted() == std::vector{pool.low_late});
  CHECK(pool.tracker.append(grows, pool.fresh_tokens(2 * block_size)));
  CHECK(pool.preempted() == std::vector{pool.low_early, pool.low_late});

  const auto refused = pool.tracker.append(grows, pool.fresh_tokens(1));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::capacity_exhausted);
  CHECK(pool.state(grows) == request_state::running);
  CHECK(pool.cache.describe(pool.tracker.describe(grows)->sequence)->num_tokens == 4 * block_size);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a resumed request keeps the rank of its arrival", "[requests]", caches) {
  auto pool = tracked_cache<TestType>{4};
  const auto tokens = pool.fresh_tokens(2 * block_size);
  const auto first = pool.running_on(tokens, with_priority(50, true));
  REQUIRE(pool.tracker.preempt(first));
  const auto second = pool.running(2);
  const auto third = pool.running(2);

  REQUIRE(pool.tracker.resume(first, tokens));
  CHECK(pool.state(second) == request_state::running);
  CHECK(pool.state(third) == request_state::preempted);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("blocks that a survivor shares are no gain", "[requests]", caches) {
  auto pool = tracked_cache<TestType>{5};
  auto tokens = pool.fresh_tokens(2 * block_size + 1);
  const auto survivor = pool.running_on(tokens, with_priority(90));
  tokens.back() += 1000;
  const auto sharer = pool.running_on(tokens, with_priority(10));  // two shared blocks and one of its own
  const auto other = pool.running(1, with_priority(20));
  CHECK(pool.in_use() == 5);

  const auto refused = pool.tracker.submit(pool.fresh_tokens(3 * block_size), with_priority(50, true));
  CHECK_FALSE(refused);
  CHECK(pool.state(sharer) == request_state::running);
  CHECK(pool.state(other) == request_state::running);

  CHECK(pool.tracker.submit(pool.fresh_tokens(2 * block_size), with_priority(50, true)));
  CHECK(pool.state(survivor) == request_state::running);
  CHECK(pool.state(sharer) == request_state::preempted);
  CHECK(pool.state(other) == request_state::preempted);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a request that gives way within a step makes room when the step retires", "[requests]",
                        caches) {
  auto pool = full_pool<TestType>{};
  const auto tokens = pool.fresh_tokens(2 * block_size);
  const auto step = pool.cache.begin_step().value();
  for (auto i = 0; i < 3; ++i) {  // asked again, nobody else gives way
    const auto refused = pool.tracker.submit(tokens, with_priority(100, true));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == error_code::capacity_exhausted);
    CHECK(refused.error().step == step);
    CHECK(pool.preempted() == std::vector{pool.low_late});
  }
  const auto more = pool.tracker.submit(pool.fresh_tokens(3 * block_size), with_priority(100, true));
  CHECK(more.error().step == step);
  CHECK(pool.preempted() == std::vector{pool.low_early, pool.low_late});
  REQUIRE(pool.cache.retire_step(step));
  CHECK(pool.tracker.submit(tokens, with_priority(100, true)));
  CHECK(pool.preempted() == std::vector{pool.low_early, pool.low_late});
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("no request gives way in vain to a prompt that shares blocks waiting for a step", "[requests]",
                        caches) {
  auto pool = tracked_cache<TestType>{6};
  auto tokens = pool.fresh_tokens(2 * block_size);
  const auto used = pool.running_on(tokens, {});
  const auto high = pool.running(3, with_priority(100));
  const auto low = pool.running(1, with_priority(1));
  const auto step = pool.cache.begin_step(std::array{pool.tracker.describe(used).value().sequence}).value();
  REQUIRE(pool.tracker.finish(used));
  const auto more = pool.fresh_tokens(2 * block_size + 1);
  tokens.insert(tokens.end(), more.begin(), more.end());
  for (auto retired = 0; retired < 2; ++retired) {  // three blocks more, of which only the low one could give one
    const auto refused = pool.tracker.submit(tokens, with_priority(50, true));
    CHECK(refused.error().code == error_code::capacity_exhausted);
    CHECK(refused.error().step == step_id{});
    CHECK(pool.state(low) == request_state::running);
    CHECK(pool.state(high) == request_state::running);
    if (retired == 0) {
      REQUIRE(pool.cache.retire_step(step));
    }
  }
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("no request gives way to an append that needs only a step to retire", "[requests]", caches) {
  auto pool = tracked_cache<TestType>{3};
  const auto grows = pool.running_on(pool.fresh_tokens(block_size + 3), with_priority(50, true));
  const auto low = pool.running(1, with_priority(1));
  const auto sequence = pool.tracker.describe(grows).value().sequence;
  const auto step = pool.cache.begin_step(std::array{sequence}).value();
  REQUIRE(pool.cache.truncate(sequence, block_size + 2));
  const auto refused = pool.tracker.append(grows, pool.fresh_tokens(1));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().step == step);
  CHECK(pool.state(low) == request_state::running);
  REQUIRE(pool.cache.retire_step(step));
  CHECK(pool.tracker.append(grows, pool.fresh_tokens(1)));
  CHECK(pool.state(low) == request_state::running);
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a request that no open step uses makes room at once", "[requests]", caches) {
  auto pool = full_pool<TestType>{};
  const auto sequence_of = [&](request_id id) { return pool.tracker.describe(id).value().sequence; };
  const auto used = std::array{sequence_of(pool.middle), sequence_of(pool.low_early), sequence_of(pool.high)};
  const auto step = pool.cache.begin_step(used).value();
  CHECK(pool.tracker.submit(pool.fresh_tokens(2 * block_size), with_priority(100, true)));
  CHECK(pool.preempted() == std::vector{pool.low_late});
  const auto grown = pool.tracker.append(pool.middle, pool.fresh_tokens(1));
  CHECK(grown.error().step == step_id{});  // may not preempt, and nothing is coming
  REQUIRE(pool.cache.retire_step(step));
  pool.check_invariants();
}

}  // namespace
