// A cache at its limits: the last length, number or block that suffices.

#include "../support/cache_fixture.hpp"

#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>

#include <catch2/catch_template_test_macros.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

TEST_CASE("a truncation lessens what counts as cached to what is left", "[cache][limits]") {
  auto cache = kv_cache<>{small_cache(16)};
  const auto before = create_committed(cache, text(0, 8));
  const auto made = cache.create_sequence(text(0, 13)).value();
  const auto num_cached_of = [&] { return cache.describe(made.id)->num_cached_tokens; };
  REQUIRE(made.num_cached_tokens == 8);
  REQUIRE(cache.truncate(made.id, 9));
  CHECK(num_cached_of() == 8);
  REQUIRE(cache.truncate(made.id, 7));
  CHECK(num_cached_of() == 7);
  REQUIRE(cache.append(made.id, text(50, 9)));
  CHECK(num_cached_of() == 7);
  CHECK(cache.describe(made.id)->num_computed_tokens == 7);
  check_sound(cache);
  release_all(cache, {before, made.id});
}

TEMPLATE_TEST_CASE("a sequence whose window has moved goes on from its start after a compaction", "[cache][limits]",
                   single_thread, rw_lock, sharded_mutex) {
  auto cache = kv_cache<TestType, lru>{small_cache(16)};
  const auto filler = cache.create_sequence(text(100, 16)).value().id;
  const auto id = create_committed(cache, text(0, 12));
  REQUIRE(cache.release(filler));
  REQUIRE(cache.drop_before(id, 4));
  REQUIRE_FALSE(cache.compact()->empty());
  check_sound(cache);
  REQUIRE(cache.truncate(id, 4));
  REQUIRE(cache.append(id, text(50, 8)));
  REQUIRE(cache.commit(id, 12));
  check_sound(cache);
  auto all = text(0, 4);
  const auto rest = text(50, 9);
  all.insert(all.end(), rest.begin(), rest.end());
  CHECK(cache.find_prefix(all) == 12);

  // The block that the window has left is the oldest one, but the sequence continues it.
  const auto later = create_committed(cache, text(200, 4));
  REQUIRE(cache.release(later));
  const auto num_free = static_cast<std::size_t>(cache.num_free_blocks());
  const auto filling = cache.create_sequence(text(300, 4 * num_free)).value().id;
  const auto last = cache.create_sequence(text(400, 12)).value().id;  // takes two that were cut off, and the later one
  CHECK(cache.statistics().evictions == 3);
  CHECK(num_cached(cache, text(200, 4)) == 0);
  CHECK(cache.find_prefix(all) == 12);
  release_all(cache, {id, filling, last});
}

TEST_CASE("the highest priority is one that sequences, ranges and answers may have", "[cache][limits]") {
  auto cache = kv_cache<>{small_cache(16)};
  auto options = sequence_options{.priority = 100, .answer = block_retention{.priority = 100}};
  options.ranges[0] = {0, 4, {100, 0}};
  CHECK(cache.create_sequence(text(0, 4), options));
  CHECK(cache.would_fit(text(0, 4), options));
}

TEST_CASE("an append in place needs no copy although a fork that was cut has gone", "[cache][limits]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 6));
  const auto forked = cache.fork(id).value();
  const auto before = table_of(cache, id);
  const auto step = cache.begin_step(std::array{forked}).value();
  REQUIRE(cache.truncate(forked, 5));  // the block waits for the step
  REQUIRE(cache.release(forked));
  REQUIRE(cache.append(id, 9));  // behind all that the step reads
  CHECK(cache.statistics().copies == 0);
  CHECK(table_of(cache, id) == before);
  check_sound(cache);
  REQUIRE(cache.retire_step(step));
  release_all(cache, {id});
}

TEMPLATE_TEST_CASE("keys of sequences that a batch commits part their blocks", "[cache][limits]", single_thread,
                   rw_lock, lock_free) {
  auto cache = kv_cache<TestType, clock_sweep>{small_cache(32)};
  auto keys = std::array<prefix_key, 3>{};
  auto ids = std::vector<sequence_id>{};
  auto entries = std::vector<batch_entry>{};
  const auto next = std::array<token, 1>{7};
  for (auto i = std::size_t{0}; i < keys.size(); ++i) {
    keys[i] = {1, {i, i + 1}};
    ids.push_back(cache.create_sequence({text(0, 8), std::span{keys}.subspan(i, 1)}).value().id);
    entries.push_back({ids.back(), token_run{next}, 8});
  }
  auto slots = std::array<slot, 3>{};
  auto failures = std::array<batch_failure, 3>{};
  REQUIRE(cache.append_batch(entries, {slots, failures})->num_failures == 0);
  for (const auto& key : keys) {
    CHECK(cache.find_prefix({text(0, 9), std::span{&key, 1}}) == 8);
  }
  CHECK(cache.find_prefix(text(0, 9)) == 0);
  CHECK(cache.statistics().blocks.in_use == 9);
  check_sound(cache);
  release_all(cache, ids);
}

TEST_CASE("a fork gives back what it shared before a block whose references are counted to the limit",
          "[cache][limits]") {
  auto config = small_cache(8);
  config.max_sequences = std::int32_t{block_state::max_count};
  auto cache = kv_cache<>{config};
  const auto other = create_committed(cache, text(0, 4));
  // Hits find its second block, but not its first one.
  const auto first = create_committed(cache, text(0, 9), {.max_cached_tokens = 0});
  for (auto count = std::uint32_t{1}; count < block_state::max_count; ++count) {
    if (!cache.pin(text(0, 8))) {
      FAIL("a pin was refused");
    }
  }
  const auto refused = cache.fork(first);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::limit_reached);
  CHECK(cache.statistics().num_sequences == 2);
  check_sound(cache);
  cache.unpin_all();
  CHECK(cache.fork(first));
  check_sound(cache);
  CHECK(cache.release(other));
}

TEMPLATE_TEST_CASE("statistics count the tokens and the slots that each operation leaves", "[cache][limits]",
                   single_thread, rw_lock, sharded_mutex, lock_free) {
  auto cache = kv_cache<TestType, clock_sweep>{small_cache(32)};
  const auto check = [&](std::int64_t num_tokens, std::int64_t num_unfilled) {
    const auto taken = cache.statistics();
    CHECK(taken.num_tokens == num_tokens);
    CHECK(taken.unfilled_slots == num_unfilled);
  };
  const auto id = cache.create_sequence(text(0, 6)).value().id;
  check(6, 2);
  REQUIRE(cache.append(id, token{9}));
  check(7, 1);
  REQUIRE(cache.append(id, text(20, 3)));
  check(10, 2);
  REQUIRE(cache.commit(id, 10));
  const auto forked = cache.fork(id).value();
  check(20, 4);
  REQUIRE(cache.reserve_slots(forked, 5));
  check(20, 8);
  REQUIRE(cache.truncate(forked, 5));
  check(15, 5);
  REQUIRE(cache.release(id));
  check(5, 3);
  CHECK(cache.slot_mapping(forked, 0, {}, 3).error().limit == 0);
  release_all(cache, {forked});
}

TEST_CASE("outcomes that no operation has filled count nothing", "[cache][limits]") {
  const auto info = sequence_info{};
  CHECK(info.num_tokens + info.num_computed_tokens + info.num_prompt_tokens == 0);
  CHECK(info.num_cached_tokens == 0);
  CHECK(info.num_blocks + info.num_slots == 0);
  const auto made = admission{};
  CHECK(made.num_cached_tokens + made.num_tokens + made.num_loading_tokens == 0);
  CHECK(made.num_blocks + made.num_new_blocks == 0);
  CHECK(prompt_fit{}.num_cached_tokens + prompt_fit{}.num_new_blocks == 0);
  CHECK(release_gain{}.at_once + release_gain{}.with_steps == 0);
  CHECK(pinning{}.num_tokens == 0);
}
