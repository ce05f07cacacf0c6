#include <pagedkv/pagedkv.hpp>

#include "../support/failing_allocator.hpp"
#include "../support/on_threads.hpp"
#include "../support/printing.hpp"
#include "../support/recording_backend.hpp"
#include "../support/tokens.hpp"
#include "group_engine.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

cache_config usable(std::int32_t num_blocks = 100) {
  auto config = cache_config{.block_size = 4, .num_blocks = num_blocks, .max_sequences = 64};
  config.hash_seed = 1;
  config.groups = {full, window, state};
  return config;
}

struct counted_events {
  static constexpr auto kinds = all_event_kinds;
  std::shared_ptr<std::map<event_kind, std::int64_t>> counts = std::make_shared<std::map<event_kind, std::int64_t>>();

  void emit(const cache_event& event) noexcept { ++(*counts)[event.kind]; }
};
static_assert(events<counted_events>);

}  // namespace

TEST_CASE("an operation whose copy fails changes nothing", "[group_cache]") {
  auto log = recording_backend::log{};
  using cache_type = group_cache<float32, recording_backend>;
  auto cache = cache_type{usable(), host_allocator{}, recording_backend{log}};
  const auto first = cache.create_sequence(numbered(30)).value();
  const auto refused = [&](const auto& outcome) {
    REQUIRE_FALSE(outcome);
    CHECK(outcome.error().code == error_code::backend_failure);
    CHECK(cache.check_invariants() == sound);
  };
  const auto blocks = [&] { return cache.statistics().blocks; };

  log.fail = true;
  auto before = blocks();
  refused(cache.commit(first.id, 28));  // the state's copy
  CHECK(blocks().in_use == before.in_use);
  CHECK(cache.describe(first.id)->num_computed_tokens == 0);
  log.fail = false;
  REQUIRE(cache.commit(first.id, 28));
  REQUIRE(cache.commit(first.id, 30));

  log.fail = true;
  before = blocks();
  refused(cache.create_sequence(numbered(30)));
  refused(cache.fork(first.id));
  CHECK(blocks().in_use == before.in_use);
  CHECK(blocks().evictable == before.evictable);
  CHECK(cache.statistics().num_sequences == 1);
  log.fail = false;
  const auto forked = cache.fork(first.id).value();
  log.fail = true;
  before = blocks();
  refused(cache.append(forked, 7));
  CHECK(blocks().in_use == before.in_use);
  CHECK(cache.describe(forked)->num_tokens == 30);
  log.fail = false;
  REQUIRE(cache.append(forked, 7));
  CHECK(cache.statistics().copies > 0);
}

TEST_CASE("blocks that were evicted for a copy are free when it fails", "[group_cache]") {
  auto log = recording_backend::log{};
  auto cache = group_cache<float32, recording_backend>{usable(20), host_allocator{}, recording_backend{log}};
  const auto ended = cache.create_sequence(std::vector<token>(28, 9)).value();
  REQUIRE(cache.commit(ended.id, 28));
  REQUIRE(cache.release(ended.id));
  const auto first = cache.create_sequence(numbered(20)).value();
  REQUIRE(cache.commit(first.id, 20));
  while (cache.statistics().blocks.free > 0) {
    REQUIRE(cache.create_sequence(std::vector<token>(1, 7), {.publish = false}));
  }
  const auto before = cache.statistics();
  REQUIRE(before.blocks.evictable > 0);
  log.fail = true;
  CHECK(cache.fork(first.id).error().code == error_code::backend_failure);
  const auto after = cache.statistics();
  CHECK(after.blocks.in_use == before.blocks.in_use);
  CHECK(after.evictions > before.evictions);
  CHECK(after.blocks.free == before.blocks.evictable - after.blocks.evictable);
  CHECK(cache.check_invariants() == sound);
  log.fail = false;
  CHECK(cache.fork(first.id));
}

TEST_CASE("a fork gives back what it shared before a block whose references are counted to the limit", "[group_cache]") {
  auto config = config_of({full});
  config.max_sequences = std::int32_t{block_state::max_count};
  auto cache = group_cache<float32>{config};
  const auto other = cache.create_sequence(numbered(4)).value().id;
  REQUIRE(cache.commit(other, 4));
  // Hits find its second block, but not its first one.
  const auto first = cache.create_sequence(numbered(9), {.max_cached_tokens = 0}).value().id;
  REQUIRE(cache.commit(first, 9));
  for (auto count = std::uint32_t{1}; count < block_state::max_count; ++count) {
    if (!cache.pin(numbered(8))) {
      FAIL("a pin was refused");
    }
  }
  const auto refused = cache.fork(first);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::limit_reached);
  CHECK(cache.statistics().num_sequences == 2);
  CHECK(cache.check_invariants() == sound);
}

TEST_CASE("a prompt that does not fit takes nothing", "[group_cache]") {
  auto cache = group_cache<float32>{usable(20)};
  const auto first = cache.create_sequence(numbered(20)).value();
  const auto before = cache.statistics();
  const auto other = cache.create_sequence(std::vector<token>(30, 9));
  REQUIRE_FALSE(other);
  CHECK(other.error().code == error_code::capacity_exhausted);
  CHECK(cache.create_sequence(std::vector<token>(1000, 9)).error().code == error_code::never_fits);
  const auto run = std::vector<token>(80, 9);
  CHECK_FALSE(cache.append(first.id, run));
  CHECK(cache.statistics().blocks.in_use == before.blocks.in_use);
  CHECK(cache.statistics().refusals == before.refusals + 3);
  CHECK(cache.check_invariants() == sound);
}

TEST_CASE("blocks of a step in flight are named by the refusal, and free when it retires", "[group_cache]") {
  auto cache = group_cache<float32>{usable(20)};
  const auto first = cache.create_sequence(numbered(40), {.publish = false}).value();
  const auto ids = std::vector{first.id};
  const auto step = cache.begin_step(ids).value();
  REQUIRE(cache.release(first.id));
  const auto refused = cache.create_sequence(std::vector<token>(40, 9));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().step == step);
  REQUIRE(cache.retire_step(step));
  CHECK(cache.create_sequence(std::vector<token>(40, 9)));
  CHECK(cache.check_invariants() == sound);
}

TEST_CASE("a cache with groups reports admissions, hits and evictions", "[group_cache]") {
  auto cache = group_cache<float32, counted_events>{usable(30)};
  for (auto round = 0; round < 12; ++round) {
    auto prompt = std::vector<token>(30, round / 2);
    const auto made = cache.create_sequence(prompt).value();
    REQUIRE(cache.commit(made.id, std::max<std::int64_t>(28, made.num_cached_tokens)));
    REQUIRE(cache.commit(made.id, 30));
    REQUIRE(cache.release(made.id));
  }
  auto& counts = *cache.events().counts;
  CHECK(counts[event_kind::admitted] == 12);
  CHECK(counts[event_kind::released] == 12);
  CHECK(counts[event_kind::hit] == 6);
  CHECK(cache.statistics().evictions > 0);
  CHECK(counts[event_kind::evicted] > 0);
  CHECK(counts[event_kind::stored] > counts[event_kind::evicted]);
}

TEST_CASE("threads share a cache with groups under a reader-writer lock", "[group_cache]") {
  auto cache = group_cache<float32, rw_lock>{usable(60)};
  auto failed = std::atomic<int>{0};
  const auto work = [&](int seed) {
    for (auto round = 0; round < 200; ++round) {
      auto prompt = numbered(static_cast<std::size_t>(10 + (seed * 7 + round * 5) % 30));
      prompt.push_back(-round % 3);
      const auto made = cache.create_sequence(prompt);
      if (!made) {
        continue;
      }
      const auto length = static_cast<std::int64_t>(prompt.size());
      const auto end = std::min(length, cache.next_saved_length(made->id).value());
      failed += !cache.commit(made->id, end) || !cache.commit(made->id, length);
      failed += cache.find_prefix(prompt) > length;
      failed += !cache.release(made->id);
    }
  };
  on_threads(4, work);
  CHECK(failed == 0);
  CHECK(cache.statistics().blocks.in_use == 0);
  CHECK(cache.check_invariants() == sound);
}

TEST_CASE("a cache with groups whose memory is refused is an error", "[group_cache]") {
  auto log = allocation_log{.fail_at = 1};
  using cache_type = group_cache<float32, failing_allocator<>>;
  CHECK(cache_type::create(usable(), failing_allocator<>{log}).error().code == error_code::out_of_memory);
  CHECK(log.live == 0);
}
