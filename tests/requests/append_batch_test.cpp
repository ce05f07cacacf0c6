#include "../support/allocation_count.hpp"
#include "tracked_cache.hpp"

#include <pagedkv/policy/groups/all.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <span>
#include <type_traits>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::test;

constexpr auto next_token = std::array<token, 1>{5};

/// A batch that appends one token to each of some requests, and the buffers for it.
template <class Tracker>
class token_batch {
 public:
  token_batch(Tracker& tracker, const std::vector<request_id>& requests, std::size_t num_groups = 1)
      : tracker_(tracker),
        requests_(requests),
        slots(requests.size() * num_groups),
        failures(requests.size()),
        new_blocks(requests.size()) {
    for (const auto id : requests) {
      entries_.push_back({tracker.describe(id).value().sequence, next_token});
    }
  }

  [[nodiscard]] tracker_result<batch_outcome> append() {
    return tracker_.append_batch(requests_, entries_, {slots, failures, new_blocks});
  }
  [[nodiscard]] std::span<const batch_failure> failed(const batch_outcome& done) const {
    return std::span{failures}.first(done.num_failures);
  }

 private:
  Tracker& tracker_;
  std::vector<request_id> requests_;
  std::vector<batch_entry> entries_;

 public:
  std::vector<slot> slots;
  std::vector<batch_failure> failures;
  std::vector<new_block> new_blocks;
};

/// The slot of a sequence's last token.
template <class Cache>
[[nodiscard]] slot last_slot(const Cache& cache, sequence_id id, std::size_t group = 0) {
  auto found = std::array<slot, 1>{};
  REQUIRE(cache.slot_mapping(id, cache.describe(id).value().num_tokens - 1, found, group));
  return found[0];
}

/// Eight blocks, all full of the tokens of four requests.
template <class Cache>
struct full_pool : tracked_cache<Cache> {
  full_pool() : tracked_cache<Cache>{8} {}

  request_id low = this->running(2, with_priority(10, true));
  request_id middle = this->running(2, with_priority(50, true));
  request_id high = this->running(2, with_priority(90, true));
  request_id other = this->running(2, with_priority(50));
};

TEST_CASE("a batch that fits is the cache's, and preempts no request", "[requests]") {
  auto pool = tracked_cache<kv_cache<>>{8};
  const auto first = pool.running(1);
  const auto second = pool.running(2);
  auto batch = token_batch{pool.tracker, {first, second}};
  const auto done = batch.append();
  REQUIRE(done);
  CHECK(done->num_failures == 0);
  CHECK(done->num_new_blocks == 2);
  CHECK(done.preempted().empty());
  CHECK(batch.slots ==
        std::vector{last_slot(pool.cache, pool.sequence(first)), last_slot(pool.cache, pool.sequence(second))});
}

TEMPLATE_TEST_CASE("the highest rank gets its block first, and the entry of the lowest is withdrawn", "[requests]",
                   kv_cache<>, (kv_cache<lock_free, clock_sweep>)) {
  auto pool = full_pool<TestType>{};
  REQUIRE(pool.tracker.finish(pool.other));
  // Two blocks can be had, which the first two entries take.
  auto batch = token_batch{pool.tracker, {pool.low, pool.middle, pool.high}};
  const auto done = batch.append();
  REQUIRE(done);
  CHECK(done.preempted() == std::vector{pool.low});
  REQUIRE(done->num_failures == 1);
  CHECK(batch.failures[0].entry == 0);
  CHECK(batch.failures[0].reason.code == error_code::preempted);
  CHECK(batch.slots == std::vector{skip_slot, last_slot(pool.cache, pool.sequence(pool.middle)),
                                   last_slot(pool.cache, pool.sequence(pool.high))});
  REQUIRE(done->num_new_blocks == 3);
  CHECK(batch.new_blocks[2].entry == 2);
  CHECK(batch.new_blocks[2].index == 2);
  pool.check_invariants();
}

TEST_CASE("of several entries that lack blocks, a lower one gives way to a higher one", "[requests]") {
  auto pool = full_pool<kv_cache<>>{};
  auto batch = token_batch{pool.tracker, {pool.low, pool.middle, pool.other, pool.high}};
  const auto done = batch.append();
  REQUIRE(done);
  CHECK(done.preempted() == std::vector{pool.low});
  REQUIRE(done->num_failures == 2);
  CHECK(batch.failures[0].entry == 0);
  CHECK(batch.failures[0].reason.code == error_code::preempted);
  CHECK(batch.failures[1].entry == 2);  // it may not preempt
  CHECK(batch.failures[1].reason.code == error_code::capacity_exhausted);
  CHECK(batch.slots[0] == skip_slot);
  CHECK(batch.slots[1] == last_slot(pool.cache, pool.sequence(pool.middle)));
  CHECK(batch.slots[2] == skip_slot);
  CHECK(batch.slots[3] == last_slot(pool.cache, pool.sequence(pool.high)));
  pool.check_invariants();
}

TEST_CASE("entries that fail for another reason keep it", "[requests]") {
  auto pool = full_pool<kv_cache<>>{};
  auto batch = token_batch{pool.tracker, {pool.low, pool.high}};
  REQUIRE(pool.tracker.finish(pool.low));
  const auto done = batch.append();
  REQUIRE(done);
  CHECK(done.preempted().empty());
  REQUIRE(done->num_failures == 1);
  CHECK(batch.failures[0].reason.code == error_code::already_ended);
}

TEST_CASE("of a request with several entries, none is repeated behind another", "[requests]") {
  auto pool = tracked_cache<kv_cache<>>{2};
  const auto high = pool.tracker.submit(std::vector<token>{1, 2, 3}, with_priority(90, true)).value();
  const auto low = pool.running(1, with_priority(10));
  constexpr auto two = std::array<token, 2>{100, 101};
  const auto requests = std::array{high.id, high.id};
  const auto entries = std::array{batch_entry{high.sequence, two}, batch_entry{high.sequence, next_token}};
  auto slots = std::array<slot, 3>{};
  auto failures = std::array<batch_failure, 2>{};
  const auto done = pool.tracker.append_batch(requests, entries, {slots, failures});
  REQUIRE(done);
  CHECK(done.preempted().empty());
  REQUIRE(done->num_failures == 1);
  CHECK(failures[0].entry == 0);
  CHECK(slots[0] == skip_slot);
  CHECK(pool.cache.describe(high.sequence)->num_tokens == 4);
  CHECK(pool.state(low) == request_state::running);
}

TEST_CASE("entries of a request that gave way tell so, also of one with several", "[requests]") {
  auto pool = full_pool<kv_cache<>>{};
  auto batch = token_batch{pool.tracker, {pool.low, pool.low, pool.high}};
  const auto done = batch.append();
  REQUIRE(done);
  CHECK(done.preempted() == std::vector{pool.low});
  REQUIRE(done->num_failures == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CAPTURE(i);
    CHECK(batch.failures[i].entry == i);
    CHECK(batch.failures[i].reason.code == error_code::preempted);
    CHECK(batch.slots[i] == skip_slot);
  }
  pool.check_invariants();
}

TEST_CASE("blocks of an open step are promised, and no second request gives way for them", "[requests]") {
  auto pool = full_pool<kv_cache<>>{};
  const auto step = pool.cache.begin_step(std::array{pool.sequence(pool.low)}).value();
  auto batch = token_batch{pool.tracker, {pool.high, pool.low}};
  const auto done = batch.append();
  REQUIRE(done);
  CHECK(done.preempted() == std::vector{pool.low});
  REQUIRE(done->num_failures == 2);
  CHECK(batch.failures[0].reason.step == step);
  CHECK(batch.failures[1].reason.code == error_code::preempted);
  REQUIRE(pool.cache.retire_step(step));
  auto again = token_batch{pool.tracker, {pool.high}};
  const auto repeated = again.append();
  REQUIRE(repeated);
  CHECK(repeated->num_failures == 0);
  CHECK(repeated.preempted().empty());
}

TEST_CASE("slots of every group are filled when an entry is repeated", "[requests][groups]") {
  constexpr auto full = group_config{.num_layers = 1, .key_dim = 2, .value_dim = 2};
  constexpr auto window =
      group_config{.kind = group_kind::window, .num_layers = 1, .key_dim = 2, .value_dim = 2, .window = 64};
  const auto fill = [](auto& cache, auto& tracker) {
    auto requests = std::vector<request_id>{};
    for (auto i = 0; i < 3; ++i) {
      const auto priority = static_cast<std::uint8_t>(10 + i);
      const auto made = tracker.submit(std::vector<token>(64, i), with_priority(priority, true)).value();
      REQUIRE(cache.commit(made.sequence, 64));
      requests.push_back(made.id);
    }
    return requests;
  };
  auto config = cache_config{.block_size = block_size, .num_blocks = 128, .max_sequences = 8, .groups = {full, window}};
  config.hash_seed = 1;
  {
    auto large = group_cache<>{config};
    auto tracker = request_tracker{large};
    static_cast<void>(fill(large, tracker));
    config.num_blocks = static_cast<std::int32_t>(large.statistics().blocks.in_use);
  }
  auto cache = group_cache<>{config};
  auto tracker = request_tracker{cache};
  const auto requests = fill(cache, tracker);
  REQUIRE(cache.statistics().blocks.free == 0);
  auto batch = token_batch{tracker, {requests[0], requests[2], requests[1]}, 2};
  const auto done = batch.append();
  REQUIRE(done);
  CHECK(done.preempted() == std::vector{requests[0]});
  CHECK(done->num_groups == 2);
  REQUIRE(batch.failed(*done).size() == 1);
  CHECK(batch.failures[0].entry == 0);
  for (auto group = std::size_t{0}; group < 2; ++group) {
    CHECK(batch.slots[3 * group] == skip_slot);
    CHECK(batch.slots[3 * group + 1] == last_slot(cache, tracker.describe(requests[2])->sequence, group));
    CHECK(batch.slots[3 * group + 2] == last_slot(cache, tracker.describe(requests[1])->sequence, group));
  }
  CHECK(cache.check_invariants().empty());
}

TEST_CASE("without memory, an entry fails and no request gives way", "[requests]") {
  for (auto n = 1;; ++n) {
    auto pool = full_pool<kv_cache<>>{};
    auto batch = token_batch{pool.tracker, {pool.high}};
    fail_allocation(n);
    const auto done = batch.append();
    fail_allocation(0);
    REQUIRE(done);
    pool.check_invariants();
    if (done->num_failures == 0) {
      CHECK(done.preempted() == std::vector{pool.low});
      CHECK(n > 2);
      break;
    }
    CHECK(done.preempted().empty());
    CHECK(batch.slots[0] == skip_slot);
    CHECK(pool.cache.describe(pool.sequence(pool.high))->num_tokens == 2 * block_size);
  }
}

TEST_CASE("each entry names a request", "[requests]") {
  auto pool = full_pool<kv_cache<>>{};
  auto slots = std::array<slot, 1>{};
  auto failures = std::array<batch_failure, 1>{};
  const auto entry = batch_entry{pool.sequence(pool.low), next_token};
  const auto refused = pool.tracker.append_batch({}, {&entry, 1}, {slots, failures});
  CHECK(code_of(refused) == error_code::invalid_argument);
  CHECK(refused.error().message() ==
        "invalid argument: number of requests of a batch, which is not that of the entries, is 0, limit 1");
  CHECK(pool.cache.describe(pool.sequence(pool.low))->num_tokens == 2 * block_size);
}

TEST_CASE("an entry of a sequence that its request does not have refuses the batch", "[requests]") {
  auto pool = full_pool<kv_cache<>>{};
  const auto swapped =
      std::array{batch_entry{pool.sequence(pool.low), next_token}, batch_entry{pool.sequence(pool.middle), next_token}};
  const auto twice = std::array{batch_entry{pool.sequence(pool.middle), next_token},
                                batch_entry{pool.sequence(pool.middle), next_token}};
  const auto requests = std::array{pool.middle, pool.low};
  const auto unchanged = [&] {
    return pool.cache.describe(pool.sequence(pool.low))->num_tokens == 2 * block_size &&
           pool.cache.describe(pool.sequence(pool.middle))->num_tokens == 2 * block_size;
  };
  auto slots = std::array<slot, 2>{};
  auto failures = std::array<batch_failure, 2>{};
  const auto buffers = batch_buffers{.slots = slots, .failures = failures};
  REQUIRE(pool.tracker.finish(pool.other));  // room for both
  const auto refused = pool.tracker.append_batch(requests, swapped, buffers);
  REQUIRE(code_of(refused) == error_code::invalid_argument);
  CHECK(refused.error().value == static_cast<std::int64_t>(pool.sequence(pool.low)));
  CHECK(refused.error().limit == static_cast<std::int64_t>(pool.sequence(pool.middle)));
  CHECK_THAT(refused.error().message(), Catch::Matchers::StartsWith("invalid argument: id of a sequence in an entry "
                                                                    "whose request does not have it, is "));
  CHECK(code_of(pool.tracker.append_batch(requests, twice, buffers)) == error_code::invalid_argument);
  CHECK(unchanged());
  const auto low = pool.sequence(pool.low);
  REQUIRE(pool.tracker.preempt(pool.low));
  const auto stale = std::array{swapped[1], batch_entry{low, next_token}};
  CHECK(code_of(pool.tracker.append_batch(requests, twice, buffers)) == error_code::invalid_argument);
  CHECK(code_of(pool.tracker.append_batch(std::array{pool.middle, request_id{12345}}, twice, buffers)) ==
        error_code::invalid_argument);
  CHECK(pool.cache.describe(pool.sequence(pool.middle))->num_tokens == 2 * block_size);
  const auto done = pool.tracker.append_batch(requests, stale, buffers);  // one that gave way fails alone
  REQUIRE(done);
  REQUIRE(done->num_failures == 1);
  CHECK(failures[0].entry == 1);
  CHECK(failures[0].reason.code == error_code::preempted);
  pool.check_invariants();
}

TEST_CASE("no conversion loses the requests that gave way", "[requests]") {
  static_assert(!std::is_convertible_v<tracker_result<submission>, result<submission>>);
  static_assert(!std::is_convertible_v<const tracker_result<submission>&, const result<submission>&>);
  static_assert(!std::is_convertible_v<tracker_result<batch_outcome>, result<batch_outcome>>);
  static_assert(!std::is_constructible_v<result<void>, tracker_result<void>>);
  auto pool = full_pool<kv_cache<>>{};
  auto submitted = pool.tracker.submit(pool.fresh_tokens(1), with_priority(80, true));
  REQUIRE(submitted.has_value());
  CHECK(submitted.preempted() == std::vector{pool.low});
  CHECK(submitted.outcome()->id == submitted->id);
  CHECK((*submitted).sequence == submitted.value().sequence);
  const auto refused = pool.tracker.append(pool.low, token{1});
  CHECK(refused.has_error());
  CHECK(refused.error().code == error_code::preempted);
  CHECK(refused.outcome().error().code == error_code::preempted);
}

/// Entries that did not fail have the slots of their last tokens; those that failed have none, and those whose request
/// gave way say so.
TEST_CASE("random batches tell what became of every entry", "[requests][random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  auto pool = tracked_cache<kv_cache<>>{24};
  auto running = std::vector<request_id>{};
  auto num_preempted = std::size_t{0};
  for (auto round = 0; round < 300; ++round) {
    const auto priority = static_cast<std::uint8_t>(random() % 4);
    const auto made = pool.tracker.submit(pool.fresh_tokens(std::uniform_int_distribution{1, 12}(random)),
                                          with_priority(priority, random() % 4 != 0));
    for (const auto id : made.preempted()) {
      REQUIRE(pool.tracker.finish(id));
      std::erase(running, id);
    }
    if (made) {
      running.push_back(made->id);
    }
    std::ranges::shuffle(running, random);
    auto batch = token_batch{pool.tracker, running};
    auto lengths = std::vector<std::int64_t>{};
    for (const auto id : running) {
      lengths.push_back(pool.cache.describe(pool.sequence(id))->num_tokens);
    }
    const auto done = batch.append();
    REQUIRE(done);
    const auto gone = std::set<request_id>(done.preempted().begin(), done.preempted().end());
    num_preempted += gone.size();
    auto failed = std::set<std::size_t>{};
    for (const auto& failure : batch.failed(*done)) {
      REQUIRE(failed.insert(failure.entry).second);
      CHECK((failure.reason.code == error_code::preempted) == gone.contains(running[failure.entry]));
      CHECK(batch.slots[failure.entry] == skip_slot);
    }
    for (auto i = std::size_t{0}; i < running.size(); ++i) {
      const auto ended = gone.contains(running[i]);
      REQUIRE(ended == (pool.state(running[i]) == request_state::preempted));
      if (!ended) {
        const auto num_tokens = pool.cache.describe(pool.sequence(running[i]))->num_tokens;
        CHECK(num_tokens == lengths[i] + !failed.contains(i));
      }
      if (!failed.contains(i)) {
        CHECK(batch.slots[i] == last_slot(pool.cache, pool.sequence(running[i])));
      }
    }
    pool.check_invariants();
    std::erase_if(running, [&](request_id id) {
      const auto ends = gone.contains(id) || random() % 16 == 0;
      if (ends) {
        REQUIRE(pool.tracker.finish(id));
      }
      return ends;
    });
  }
  CHECK(num_preempted > 0);
}

}  // namespace
