#include "tracked_cache.hpp"

#include <catch2/catch_template_test_macros.hpp>

#include <array>
#include <cstdint>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::test;

/// Four blocks, which requests of two blocks each wait for.
template <class Cache>
struct queue : tracked_cache<Cache> {
  explicit queue(const tracker_config& config = {}) : tracked_cache<Cache>{4, config} {}

  [[nodiscard]] request_id waiting(std::uint8_t priority) {
    return this->tracker.enqueue(with_priority(priority, true)).value();
  }
  [[nodiscard]] auto resume(request_id id) { return this->tracker.resume(id, this->fresh_tokens(2 * block_size)); }
  [[nodiscard]] std::vector<request_id> resumable() { return this->tracker.resumable().value(); }
};

TEMPLATE_LIST_TEST_CASE("waiting and preempted requests are one queue, by rank", "[requests]", all_caches) {
  auto pool = queue<TestType>{};
  const auto low = pool.waiting(10);
  const auto preempted = pool.running(2, with_priority(50));
  const auto middle = pool.waiting(50);
  const auto high = pool.waiting(90);
  CHECK(pool.resumable() == std::vector{high, middle, low});
  REQUIRE(pool.tracker.preempt(preempted));
  CHECK(pool.resumable() == std::vector{high, preempted, middle, low});
  CHECK(pool.in_use() == 0);

  auto running = std::vector<request_id>{};
  for (const auto id : pool.resumable()) {
    const auto started = pool.resume(id);
    if (!started) {
      CHECK(code_of(started) == error_code::capacity_exhausted);
      break;
    }
    CHECK(started->id == id);
    CHECK(started.preempted().empty());
    running.push_back(id);
  }
  CHECK(running == std::vector{high, preempted});
  CHECK(pool.resumable() == std::vector{middle, low});
  const auto counts = pool.tracker.statistics();
  CHECK(std::array{counts.waiting, counts.running, counts.preempted, counts.submitted} == std::array{2L, 2L, 0L, 2L});

  const auto highest = pool.waiting(95);
  const auto started = pool.resume(highest);
  REQUIRE(started);
  CHECK(started.preempted() == std::vector{preempted});
  CHECK(pool.resumable() == std::vector{preempted, middle, low});
  pool.check_invariants();
}

TEMPLATE_LIST_TEST_CASE("a waiting request is one that has not begun", "[requests]", all_caches) {
  auto pool = queue<TestType>{};
  pool.tracker.purge();
  const auto id = pool.waiting(50);
  const auto waiting = pool.tracker.describe(id).value();
  CHECK(waiting.state == request_state::waiting);
  CHECK(waiting.sequence == sequence_id{});
  CHECK(waiting.options.sequence.num_prompt_tokens == sequence_options::no_limit);
  CHECK(code_of(pool.tracker.append(id, token{1})) == error_code::preempted);
  CHECK(code_of(pool.tracker.preempt(id)) == error_code::preempted);
  CHECK(code_of(pool.tracker.fork(id)) == error_code::preempted);

  REQUIRE(pool.resume(id));
  CHECK(code_of(pool.resume(id)) == error_code::not_preempted);
  const auto running = pool.tracker.describe(id).value();
  CHECK(running.state == request_state::running);
  CHECK(running.arrival == waiting.arrival);
  CHECK(running.options.sequence.num_prompt_tokens == 2 * block_size);
  REQUIRE(pool.tracker.preempt(id));
  REQUIRE(pool.tracker.resume(id, pool.fresh_tokens(3 * block_size)));
  CHECK(pool.tracker.describe(id)->options.sequence.num_prompt_tokens == 2 * block_size);
  REQUIRE(pool.tracker.finish(id));
  CHECK(code_of(pool.resume(id)) == error_code::already_ended);

  REQUIRE(pool.tracker.cancel(pool.waiting(50)));
  REQUIRE(pool.tracker.fail(pool.waiting(50), some_failure));
  const auto counts = pool.tracker.statistics();
  CHECK(std::array{counts.waiting, counts.submitted, counts.finished, counts.cancelled, counts.failed} ==
        std::array{0L, 1L, 1L, 1L, 1L});
  CHECK(pool.resumable().empty());
}

TEMPLATE_LIST_TEST_CASE("waiting requests count against the limit", "[requests]", all_caches) {
  auto pool = queue<TestType>{{.max_open = 2}};
  const auto first = pool.waiting(50);
  REQUIRE(pool.waiting(50) != first);
  CHECK(code_of(pool.tracker.enqueue()) == error_code::limit_reached);
  CHECK(code_of(pool.tracker.submit(pool.fresh_tokens(1))) == error_code::limit_reached);
  CHECK(pool.tracker.statistics().refused == 2);
  REQUIRE(pool.tracker.finish(first));
  CHECK(pool.tracker.enqueue());
}

}  // namespace
