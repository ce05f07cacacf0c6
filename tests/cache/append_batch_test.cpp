#include "../support/cache_fixture.hpp"
#include "../support/policy_matrix.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <pagedkv/events/event_queues.hpp>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using lockings = std::tuple<single_thread, rw_lock, basic_sharded_mutex<3>, lock_free>;

template <class Locking>
using cache_of = kv_cache<Locking, clock_sweep>;

/// Room for a batch of the tests'.
struct buffers {
  std::array<slot, 64> slots{};
  std::array<batch_failure, 8> failures{};
  std::array<new_block, 8> new_blocks{};

  [[nodiscard]] batch_buffers view() { return {slots, failures, new_blocks}; }
};

template <class Cache>
[[nodiscard]] std::vector<slot> slots_of(Cache& cache, sequence_id id, std::int64_t first) {
  auto slots = std::vector<slot>(static_cast<std::size_t>(cache.describe(id)->num_tokens - first));
  REQUIRE(cache.slot_mapping(id, first, slots));
  return slots;
}

}  // namespace

TEST_CASE("a batch takes the hash of a block that one token fills", "[cache][batch][hashes]") {
  auto queues = event_queues{4};
  auto cache = kv_cache<event_queues>{small_cache(8), queues};
  const auto id = cache.create_sequence(text(0, 3)).value().id;
  const auto next = text(3, 1);
  const auto told = std::array<std::uint64_t, 1>{7};
  auto out = buffers{};
  const auto entries = std::array<batch_entry, 1>{{{.id = id, .run = {next, {}, told}, .num_computed_tokens = 3}}};
  REQUIRE(cache.append_batch(entries, out.view())->num_failures == 0);
  REQUIRE(cache.commit(id, 4));
  auto hash = std::uint64_t{0};
  queues.drain([&](const cache_event& stored) { hash = stored.hash; });
  CHECK(hash == told[0]);
}

TEMPLATE_LIST_TEST_CASE("a batch appends, commits and maps slots for every sequence", "[cache][batch]", lockings) {
  auto cache = cache_of<TestType>{small_cache(16)};
  const auto prefilled = cache.create_sequence(text(0, 7)).value().id;
  const auto decoding = create_committed(cache, text(100, 4));
  const auto idle = create_committed(cache, text(200, 3));
  const auto run = text(300, 6);
  auto out = buffers{};
  const auto entries = std::array<batch_entry, 3>{{
      {.id = prefilled, .run = std::span{run}.first(1), .num_computed_tokens = 7},
      {.id = decoding, .run = run},
      {.id = idle},
  }};
  const auto done = cache.append_batch(entries, out.view()).value();
  CHECK(done.num_failures == 0);
  REQUIRE(done.num_slots == 7);
  CHECK(slots_of(cache, prefilled, 7) == std::vector{out.slots[0]});
  CHECK(slots_of(cache, decoding, 4) == std::vector(out.slots.begin() + 1, out.slots.begin() + 7));
  CHECK(cache.describe(prefilled)->num_computed_tokens == 7);
  CHECK(num_cached(cache, text(0, 8)) == 4);
  CHECK(cache.describe(idle)->num_tokens == 3);

  REQUIRE(done.num_new_blocks == 2);  // of the run; the single token had room
  const auto table = table_of(cache, decoding);
  for (auto i = std::uint32_t{0}; i < 2; ++i) {
    CHECK(out.new_blocks[i].entry == 1);
    CHECK(out.new_blocks[i].index == i + 1);
    CHECK(out.new_blocks[i].block == table[i + 1]);
  }
  check_sound(cache);
  release_all(cache, {prefilled, decoding, idle});
}

TEMPLATE_LIST_TEST_CASE("a batch tells which sequences did not fit, and the others go on", "[cache][batch]", lockings) {
  auto cache = cache_of<TestType>{small_cache(4)};
  const auto first = cache.create_sequence(text(0, 4)).value().id;
  const auto second = cache.create_sequence(text(100, 4)).value().id;
  const auto third = cache.create_sequence(text(200, 3)).value().id;
  const auto dead = cache.create_sequence({}).value().id;
  REQUIRE(cache.release(dead));
  const auto one = text(300, 1);
  const auto many = text(300, 20);
  auto out = buffers{};
  const auto entries = std::array<batch_entry, 6>{{
      {.id = first, .run = one, .num_computed_tokens = 4},
      {.id = second, .run = one, .num_computed_tokens = 4},
      {.id = third, .run = many},
      {.id = third, .run = one},
      {.id = dead, .run = one},
      {.id = third, .run = one, .num_computed_tokens = 5},
  }};
  const auto done = cache.append_batch(entries, out.view()).value();
  REQUIRE(done.num_slots == 25);
  REQUIRE(done.num_failures == 4);
  const auto expected = std::array<std::pair<std::size_t, error_code>, 4>{{
      {1, error_code::capacity_exhausted},
      {2, error_code::never_fits},
      {4, error_code::unknown_sequence},
      {5, error_code::invalid_argument},
  }};
  for (auto i = std::size_t{0}; i < expected.size(); ++i) {
    CHECK(out.failures[i].entry == expected[i].first);
    CHECK(out.failures[i].reason.code == expected[i].second);
  }
  CHECK(std::ranges::count(std::span{out.slots}.first(25), skip_slot) == 23);
  CHECK(slots_of(cache, first, 4) == std::vector{out.slots[0]});
  CHECK(slots_of(cache, third, 3) == std::vector{out.slots[22]});
  CHECK(cache.describe(second)->num_tokens == 4);
  CHECK(cache.describe(second)->num_computed_tokens == 4);  // computed blocks are found by the next request
  CHECK(cache.describe(third)->num_computed_tokens == 0);
  check_sound(cache);
  release_all(cache, {first, second, third});
}

TEMPLATE_LIST_TEST_CASE("entries of one sequence are executed in their order", "[cache][batch]", lockings) {
  constexpr auto num_each = std::size_t{80};  // of a sequence: a fourth of them start a block, others only store
  auto cache = cache_of<TestType>{small_cache(64)};
  const auto ids = std::array{create_committed(cache, text(0, 3)), cache.create_sequence(text(1000, 5)).value().id};
  const auto runs = std::array{text(3, num_each), text(1005, num_each)};
  auto lengths = std::array<std::int64_t, 2>{3, 5};
  auto entries = std::vector<batch_entry>{};
  for (std::size_t i = 0; i < num_each; ++i) {
    for (std::size_t s = 0; s < ids.size(); ++s) {
      // The second one's commits lag by a token, so that they publish where the last block has room.
      const auto num_computed = lengths[s]++ - static_cast<std::int64_t>(s);
      entries.push_back({.id = ids[s],
                         .run = std::span{runs[s]}.subspan(i, 1),
                         .num_computed_tokens = i % 2 == 0 ? num_computed : batch_entry::no_commit});
    }
  }
  auto slots = std::vector<slot>(entries.size());
  auto failures = std::vector<batch_failure>(entries.size());
  auto new_blocks = std::vector<new_block>(entries.size());
  const auto done = cache.append_batch(entries, {slots, failures, new_blocks}).value();
  REQUIRE(done.num_failures == 0);
  for (std::size_t s = 0; s < ids.size(); ++s) {
    const auto first = std::int64_t{s == 0 ? 3 : 5};
    auto all = tokens(num_each);
    REQUIRE(cache.tokens(ids[s], first, all));
    CHECK(all == runs[s]);
    const auto mapped = slots_of(cache, ids[s], first);
    for (std::size_t i = 0; i < num_each; ++i) {
      CHECK(mapped[i] == slots[2 * i + s]);
    }
  }
  CHECK(std::ranges::is_sorted(std::span{new_blocks}.first(done.num_new_blocks), {}, &new_block::entry));
  check_sound(cache);
  release_all(cache, {ids[0], ids[1]});
}

TEMPLATE_LIST_TEST_CASE("an entry that only commits does not overtake an earlier one of its sequence", "[cache][batch]",
                        lockings) {
  auto cache = cache_of<TestType>{small_cache(16)};
  const auto id = cache.create_sequence(text(0, 7)).value().id;
  REQUIRE(cache.commit(id, 4));
  const auto run = text(100, 9);
  auto out = buffers{};
  const auto entries = std::array<batch_entry, 3>{{
      {.id = id, .run = run, .num_computed_tokens = 5},
      {.id = id, .num_computed_tokens = 6},
      {.id = id, .num_computed_tokens = 5},
  }};
  const auto done = cache.append_batch(entries, out.view()).value();
  REQUIRE(done.num_failures == 1);
  CHECK(out.failures[0].entry == 2);
  CHECK(out.failures[0].reason.code == error_code::invalid_argument);
  CHECK(cache.describe(id)->num_tokens == 16);
  CHECK(cache.describe(id)->num_computed_tokens == 6);
  check_sound(cache);
  release_all(cache, {id});
}

TEMPLATE_LIST_TEST_CASE("an entry without tokens commits, and leaves the rest", "[cache][batch]", lockings) {
  auto cache = cache_of<TestType>{small_cache(8)};
  const auto id = cache.create_sequence(text(0, 6)).value().id;
  auto out = buffers{};
  for (const auto num_computed : {std::int64_t{2}, std::int64_t{5}}) {  // within the first block, and behind it
    const auto commit = std::array{batch_entry{.id = id, .num_computed_tokens = num_computed}};
    const auto done = cache.append_batch(commit, out.view());
    REQUIRE(done->num_failures == 0);
    CHECK(done->num_slots == 0);
    CHECK(cache.describe(id)->num_computed_tokens == num_computed);
  }
  CHECK(cache.describe(id)->num_tokens == 6);
  CHECK(cache.append_batch(std::array{batch_entry{.id = id, .num_computed_tokens = 7}}, out.view())->num_failures == 1);
  CHECK(cache.append_batch(std::array{batch_entry{.id = id, .num_computed_tokens = 4}}, out.view())->num_failures == 1);
  REQUIRE(cache.append(id, token{6}));
  CHECK(cache.find_prefix(text(0, 6)) == 4);
  check_sound(cache);
  release_all(cache, {id});
}

TEMPLATE_LIST_TEST_CASE("a hash that a batch made does not outlive its tokens", "[cache][batch]", lockings) {
  auto cache = cache_of<TestType>{small_cache(16)};
  auto ids = std::array<sequence_id, 2>{};
  auto entries = std::array<batch_entry, 2>{};
  const auto next = text(500, 1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    // The first block is full, and waits for a commit; the entry takes the second one.
    ids[i] = cache.create_sequence(text(static_cast<token>(1000 * i), 4)).value().id;
    entries[i] = {.id = ids[i], .run = next};
  }
  auto out = buffers{};
  REQUIRE(cache.append_batch(entries, out.view())->num_failures == 0);
  for (const auto id : ids) {
    REQUIRE(cache.truncate(id, 2));
    REQUIRE(cache.append(id, text(2000, 2)));
    REQUIRE(cache.commit(id, 4));
  }
  for (const auto first : {token{0}, token{1000}}) {
    CHECK(cache.find_prefix(text(first, 5)) == 0);
    auto tokens = text(first, 2);
    std::ranges::copy(text(2000, 3), std::back_inserter(tokens));
    CHECK(cache.find_prefix(tokens) == 4);
  }
  check_sound(cache);
  release_all(cache, {ids[0], ids[1]});
}

TEMPLATE_LIST_TEST_CASE("a batch notes the block that a copy on write replaces", "[cache][batch]", lockings) {
  auto cache = cache_of<TestType>{small_cache(8)};
  const auto from = create_committed(cache, text(0, 6));
  const auto to = cache.fork(from).value();
  const auto run = text(300, 3);
  auto out = buffers{};
  const auto entries = std::array<batch_entry, 2>{{{.id = to, .run = run}, {.id = from, .run = run}}};
  const auto done = cache.append_batch(entries, out.view()).value();
  REQUIRE(done.num_new_blocks == 3);
  CHECK(out.new_blocks[0].index == 1);
  CHECK(out.new_blocks[0].block == table_of(cache, to)[1]);
  CHECK(out.new_blocks[1].index == 2);
  CHECK(out.new_blocks[2].entry == 1);
  CHECK(out.new_blocks[2].index == 2);
  CHECK(cache.statistics().copies == 1);
  check_sound(cache);
  release_all(cache, {from, to});
}

TEST_CASE("a batch with too little room for its outcome changes nothing", "[cache][batch]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto id = cache.create_sequence(text(0, 3)).value().id;
  const auto run = text(300, 3);
  auto out = buffers{};
  const auto entries = std::array<batch_entry, 1>{{{.id = id, .run = run, .num_computed_tokens = 3}}};
  CHECK(cache.append_batch(entries, {std::span{out.slots}.first(2), out.failures, {}}).error().code ==
        error_code::invalid_argument);
  CHECK(cache.append_batch(entries, {out.slots, {}, {}}).error().code == error_code::invalid_argument);
  CHECK(cache.describe(id)->num_tokens == 3);
  CHECK(cache.describe(id)->num_computed_tokens == 0);
  CHECK(cache.append_batch(entries, {out.slots, out.failures, {}})->num_new_blocks == 1);
  release_all(cache, {id});
}

TEMPLATE_LIST_TEST_CASE("a batch keeps the key of a single token, and refuses one that lies elsewhere", "[cache][batch]",
                        lockings) {
  auto cache = cache_of<TestType>{small_cache(16)};
  const auto id = cache.create_sequence(text(0, 3)).value().id;
  const auto other = cache.create_sequence(text(50, 2)).value().id;
  const auto key = prefix_key{3, {7, 7}};
  const auto misplaced = prefix_key{-5, {1, 1}};
  const auto next = text(3, 1);
  auto out = buffers{};
  const auto entries = std::array<batch_entry, 2>{{
      {.id = id, .run = {next, std::span{&key, 1}}},
      {.id = other, .run = {next, std::span{&misplaced, 1}}},
  }};
  const auto done = cache.append_batch(entries, out.view()).value();
  CHECK(done.num_failures == 1);
  REQUIRE(cache.commit(id, 4));
  CHECK(cache.find_prefix(text(0, 5)) == 0);
  CHECK(cache.find_prefix({text(0, 5), std::span{&key, 1}}) == 4);
  release_all(cache, {id, other});
}

TEST_CASE("slots ahead whose sum wraps are refused", "[cache][batch]") {
  auto cache = cache_of<single_thread>{small_cache(16)};
  const auto id = cache.create_sequence(text(0, 3)).value().id;
  const auto entries = std::vector(32, batch_entry{.id = id, .num_ahead = std::int64_t{1} << 59});
  auto failures = std::vector<batch_failure>(32);
  CHECK(cache.append_batch(entries, {.failures = failures}).error().code == error_code::invalid_argument);
  release_all(cache, {id});
}

TEMPLATE_LIST_TEST_CASE("a fork does not write slots ahead that a step in flight may use", "[cache][batch]", lockings) {
  auto cache = cache_of<TestType>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 3));
  REQUIRE(cache.reserve_slots(id, 1));
  auto ahead = std::array<slot, 1>{};
  REQUIRE(cache.slot_mapping(id, 3, ahead));
  const auto step = cache.begin_step(std::span{&id, 1}).value();
  const auto forked = cache.fork(id).value();
  const auto later = cache.fork(forked).value();
  REQUIRE(cache.release(id));
  REQUIRE(cache.append(forked, token{9}));
  CHECK(slots_of(cache, forked, 3) != std::vector{ahead[0]});
  REQUIRE(cache.append(later, token{9}));
  CHECK(slots_of(cache, later, 3) != std::vector{ahead[0]});
  REQUIRE(cache.retire_step(step));
  check_sound(cache);
  release_all(cache, {forked, later});
}

TEST_CASE("a fork appends in place once the step that may use slots ahead has retired", "[cache][batch]") {
  auto cache = cache_of<single_thread>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 3));
  REQUIRE(cache.reserve_slots(id, 1));
  const auto step = cache.begin_step(std::span{&id, 1}).value();
  const auto forked = cache.fork(id).value();
  REQUIRE(cache.release(id));
  REQUIRE(cache.retire_step(step));
  REQUIRE(cache.append(forked, token{9}));
  CHECK(cache.statistics().copies == 0);
  release_all(cache, {forked});
}
