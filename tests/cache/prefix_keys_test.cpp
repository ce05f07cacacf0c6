#include "../support/cache_fixture.hpp"
#include "../support/policy_matrix.hpp"

#include <catch2/catch_template_test_macros.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using lockings = std::tuple<single_thread, rw_lock, basic_sharded_mutex<3>, lock_free>;

/// Sends every block to one bucket of the index, so that only comparisons distinguish contents.
struct one_hash {
  [[nodiscard]] static std::uint64_t hash(std::uint64_t, std::span<const token>) noexcept { return 7; }
};

[[nodiscard]] prefix_key image(std::int64_t position, std::uint64_t digest) { return {position, {digest, digest * 3}}; }

template <class Cache>
[[nodiscard]] sequence_id create_keyed(Cache& cache, const tokens& prompt, const std::vector<prefix_key>& keys) {
  const auto id = cache.create_sequence({prompt, keys}).value().id;
  REQUIRE(cache.commit(id, std::ssize(prompt)));
  return id;
}

template <class Cache>
void check_keys_are_compared(Cache& cache) {
  const auto prompt = text(0, 20);
  const auto asked = text(0, 21);  // one token is left to compute
  const auto keys = std::vector{image(5, 1), image(6, 2), image(13, 3)};
  const auto id = create_keyed(cache, prompt, keys);
  check_sound(cache);
  CHECK(cache.find_prefix({asked, keys}) == 20);
  CHECK(cache.find_prefix(asked) == 4);
  CHECK(cache.find_prefix({asked, std::vector{image(5, 1), image(6, 2)}}) == 12);
  CHECK(cache.find_prefix({asked, std::vector{image(5, 1), image(6, 2), image(14, 3)}}) == 12);
  CHECK(cache.find_prefix({asked, std::vector{image(5, 1)}}) == 4);
  CHECK(cache.find_prefix({asked, std::vector{image(5, 2), image(6, 1), image(13, 3)}}) == 4);
  CHECK(cache.find_prefix({asked, std::vector{image(0, 1)}}) == 0);
  CHECK(cache.find_prefix({asked, std::vector{prefix_key{5, {1, 4}}, image(6, 2)}}) == 4);
  const auto unkeyed = create_committed(cache, prompt);
  CHECK(cache.find_prefix(asked) == 20);
  CHECK(cache.find_prefix({asked, keys}) == 20);
  const auto pinned = cache.pin({prompt, keys}).value();
  CHECK(pinned.num_tokens == 20);
  check_sound(cache);
  REQUIRE(cache.unpin(pinned.id));
  release_all(cache, {id, unkeyed});
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("blocks from a key on are shared only with equal keys", "[cache][keys]", lockings) {
  auto cache = kv_cache<TestType, clock_sweep>{small_cache(32)};
  check_keys_are_compared(cache);
  auto colliding = kv_cache<TestType, clock_sweep, one_hash>{small_cache(32)};
  check_keys_are_compared(colliding);
}

TEMPLATE_LIST_TEST_CASE("keys come with appended tokens, too, and go with truncated ones", "[cache][keys]", lockings) {
  auto cache = kv_cache<TestType, clock_sweep>{small_cache(32)};
  const auto prompt = text(0, 24);
  const auto asked = text(0, 25);
  const auto keys = std::vector{image(9, 1), image(17, 2)};
  const auto whole = create_keyed(cache, prompt, keys);
  const auto chunked = cache.create_sequence({prompt, keys}, {.max_cached_tokens = 0, .first_chunk = 6}).value().id;
  REQUIRE(cache.append(chunked, std::span{prompt}.subspan(6)));  // the prompt's keys are known
  REQUIRE(cache.commit(chunked, 24));
  const auto appended = cache.create_sequence(text(0, 6)).value().id;
  REQUIRE(cache.append(appended, {std::span{prompt}.subspan(6, 8), std::span{keys}.first(1)}));
  CHECK(cache.append(appended, {std::span{prompt}.subspan(14), std::span{keys}.first(1)}).error().code ==
        error_code::invalid_argument);
  REQUIRE(cache.append(appended, {std::span{prompt}.subspan(14), std::span{keys}.last(1)}));
  REQUIRE(cache.commit(appended, 24));
  check_sound(cache);
  CHECK(cache.find_prefix({asked, keys}) == 24);
  CHECK(cache.find_prefix(asked) == 8);

  REQUIRE(cache.truncate(appended, 8));
  REQUIRE(cache.append(appended, std::span{prompt}.subspan(8)));  // now without keys
  REQUIRE(cache.commit(appended, 24));
  CHECK(cache.find_prefix(asked) == 24);
  check_sound(cache);
  const auto forked = cache.fork(chunked).value();
  REQUIRE(cache.truncate(forked, 18));
  REQUIRE(cache.append(forked, std::span{prompt}.subspan(18)));
  REQUIRE(cache.commit(forked, 24));
  check_sound(cache);
  CHECK(cache.create_sequence({text(0, 4), std::vector{image(4, 1)}}).error().code == error_code::invalid_argument);
  CHECK(cache.create_sequence({text(0, 4), std::vector{image(2, 1), image(1, 1)}}).error().code ==
        error_code::invalid_argument);
  release_all(cache, {whole, chunked, appended, forked});
  REQUIRE(cache.reset_prefix_cache());
  CHECK(cache.find_prefix({asked, keys}) == 0);
}

TEST_CASE("a key of the first token stays when others are truncated", "[cache][keys]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto keys = std::vector{image(0, 1), image(6, 2)};
  const auto id = cache.create_sequence({text(0, 8), keys}).value().id;
  REQUIRE(cache.truncate(id, 4));
  REQUIRE(cache.commit(id, 4));
  check_sound(cache);
  CHECK(cache.find_prefix({text(0, 5), std::vector{image(0, 1)}}) == 4);
  CHECK(cache.find_prefix(text(0, 5)) == 0);
  release_all(cache, {id});
}

TEMPLATE_LIST_TEST_CASE("a key that comes without tokens is refused instead of lost", "[cache][keys]", lockings) {
  auto cache = kv_cache<TestType, clock_sweep>{small_cache(32)};
  const auto id = cache.create_sequence(text(0, 6)).value().id;
  auto failures = std::array<batch_failure, 1>{};
  auto slots = std::array<slot, 2>{};
  for (const auto position : {-5, 0, 5, 6, 7}) {
    const auto keys = std::array{image(position, 1)};
    const auto run = token_run{tokens{}, keys};
    const auto refused = cache.append(id, run);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == error_code::invalid_argument);
    for (const auto num_ahead : {0, 2}) {
      const auto entry = batch_entry{.id = id, .run = run, .num_ahead = num_ahead};
      REQUIRE(cache.append_batch({&entry, 1}, {slots, failures})->num_failures == 1);
      CHECK(failures[0].reason.code == error_code::invalid_argument);
    }
  }
  REQUIRE(cache.append(id, tokens{}));
  CHECK(cache.describe(id)->num_slots == 6);
  CHECK(cache.keys(id, {}).value() == 0);
  check_sound(cache);
  release_all(cache, {id});
}

TEST_CASE("keys survive eviction around them and compaction", "[cache][keys]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto keys = std::vector{image(1, 1)};
  const auto filler = create_committed(cache, text(500, 8));
  const auto keyed = create_keyed(cache, text(0, 8), keys);
  REQUIRE(cache.release(filler));
  const auto more = create_committed(cache, text(600, 20));  // evicts the filler
  REQUIRE(cache.release(more));
  REQUIRE(cache.reset_prefix_cache().error().code == error_code::in_use);
  REQUIRE(cache.compact());
  check_sound(cache);
  CHECK(cache.find_prefix({text(0, 9), keys}) == 8);
  CHECK(cache.find_prefix(text(0, 9)) == 0);
  release_all(cache, {keyed});
  const auto evicts = create_committed(cache, text(700, 32));
  CHECK(cache.find_prefix({text(0, 8), keys}) == 0);
  CHECK(cache.find_prefix(text(700, 33)) == 32);  // no key is left in its blocks
  release_all(cache, {evicts});
}

TEMPLATE_LIST_TEST_CASE("hashes that a caller computes find and publish what the cache's own do", "[cache][hashes]",
                        lockings) {
  auto cache = kv_cache<TestType, clock_sweep>{small_cache(32)};
  const auto prompt = text(0, 22);
  const auto keys = std::vector{image(9, 1)};
  auto hashes = std::vector<std::uint64_t>(5);
  REQUIRE(cache.hash_blocks({prompt, keys}, hashes, salt{3}) == 5);
  auto few = std::array<std::uint64_t, 2>{};
  REQUIRE(cache.hash_blocks({prompt, keys}, few, salt{3}) == 2);
  CHECK(few[1] == hashes[1]);

  const auto first = cache.create_sequence({prompt, keys, hashes}, {.salt = salt{3}, .first_chunk = 9}).value().id;
  REQUIRE(cache.append(first, {std::span{prompt}.subspan(9), {}, hashes}));
  REQUIRE(cache.commit(first, 22));
  check_sound(cache);  // the hashes are those of the contents
  CHECK(cache.find_prefix({prompt, keys}, salt{3}) == 20);
  CHECK(cache.find_prefix({prompt, keys, hashes}, salt{3}) == 20);
  CHECK(cache.find_prefix({prompt, keys, few}, salt{3}) == 20);  // the others are computed
  CHECK(cache.create_sequence({prompt, keys, hashes}, {.salt = salt{3}})->num_cached_tokens == 20);
  CHECK(cache.find_prefix({text(1, 22), keys, hashes}, salt{3}) == 0);  // tokens are compared
  CHECK(cache.find_prefix({prompt, keys, hashes}) == 0);                // so are salts
}

TEST_CASE("each block has the priority of its tokens' range", "[cache][retention]") {
  STATIC_REQUIRE(kv_cache<priority>::uses_priority);
  STATIC_REQUIRE(!kv_cache<lru>::uses_priority);
  auto cache = kv_cache<priority>{small_cache(8)};
  const auto options = sequence_options{
      .priority = 50,
      .ranges = {range_retention{0, 5, {90, 0}}, range_retention{8, 12, {10, 0}}, range_retention{4, 8, {70, 100}}},
      .answer = block_retention{20, 0},
  };
  const auto id = cache.create_sequence(text(0, 20), options).value().id;
  REQUIRE(cache.append(id, text(20, 4)));
  REQUIRE(cache.commit(id, 24));  // priorities 90 90 10 50 50 20
  REQUIRE(cache.release(id));
  const auto needed = cache.create_sequence(text(100, 28)).value().id;  // evicts all but one
  CHECK(cache.find_prefix(text(0, 24)) == 4);
  CHECK(cache.create_sequence(text(0, 4), {.ranges = {range_retention{3, 2, {}}}}).error().code ==
        error_code::invalid_argument);
  CHECK(cache.create_sequence(text(0, 4), {.answer = block_retention{101, 0}}).error().code ==
        error_code::invalid_argument);
  release_all(cache, {needed});
}

TEST_CASE("a block that no range touches has the sequence's priority, for its time", "[cache][retention]") {
  auto cache = kv_cache<priority>{small_cache(4)};
  const auto options = sequence_options{.priority = 30, .answer = block_retention{60, 100}};
  const auto id = create_committed(cache, text(0, 4), options);
  REQUIRE(cache.append(id, text(4, 4)));
  REQUIRE(cache.commit(id, 8));
  REQUIRE(cache.release(id));
  const auto plain = create_committed(cache, text(50, 4), {.priority = 40});
  REQUIRE(cache.release(plain));
  cache.advance_time(timestamp{200});  // the answer's time is over
  const auto needed = cache.create_sequence(text(100, 8)).value().id;
  CHECK(cache.find_prefix(text(0, 9)) == 4);
  CHECK(cache.find_prefix(text(50, 5)) == 4);
  release_all(cache, {needed});
}

TEST_CASE("a range of the first token counts", "[cache][retention]") {
  auto cache = kv_cache<priority>{small_cache(2)};
  const auto ranged = create_committed(cache, text(0, 4), {.priority = 10, .ranges = {range_retention{0, 1, {90, 0}}}});
  REQUIRE(cache.release(ranged));
  const auto plain = create_committed(cache, text(50, 4), {.priority = 40});
  REQUIRE(cache.release(plain));
  const auto needed = cache.create_sequence(text(100, 4)).value().id;
  CHECK(cache.find_prefix(text(0, 5)) == 4);
  release_all(cache, {needed});
}

TEST_CASE("tokens behind the prompt are an answer from creation on", "[cache][retention]") {
  auto cache = kv_cache<priority>{small_cache(4)};
  auto options = sequence_options{.priority = 60, .num_prompt_tokens = 4, .answer = block_retention{20, 0}};
  const auto id = create_committed(cache, text(0, 8), options);
  CHECK(cache.describe(id)->num_prompt_tokens == 4);
  REQUIRE(cache.release(id));
  const auto plain = create_committed(cache, text(50, 8), {.priority = 40});
  REQUIRE(cache.release(plain));
  const auto needed = cache.create_sequence(text(100, 4)).value().id;
  CHECK(num_cached(cache, text(0, 8)) == 4);
  CHECK(num_cached(cache, text(50, 8)) == 8);
  release_all(cache, {needed});
  options.num_prompt_tokens = -1;
  CHECK(cache.create_sequence(text(0, 4), options).error().code == error_code::invalid_argument);
  options.num_prompt_tokens = 0;
  const auto answer = cache.create_sequence(text(0, 4), options).value().id;
  CHECK(cache.describe(answer)->num_prompt_tokens == 0);
  release_all(cache, {answer});
}
