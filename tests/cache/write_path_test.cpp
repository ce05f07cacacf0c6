#include "../support/allocation_count.hpp"
#include "../support/cache_fixture.hpp"

#include <array>

using namespace pagedkv;
using namespace pagedkv::test;

TEST_CASE("each writer of a shared block gets one copy, the last one none", "[cache][copy_on_write]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto first = create_committed(cache, text(0, 6));
  const auto second = cache.fork(first).value();
  const auto third = cache.fork(second).value();
  CHECK(cache.statistics().blocks.in_use == 2);

  REQUIRE(cache.append(second, 100));
  CHECK(cache.statistics().copies == 1);
  CHECK(table_of(cache, second)[0] == table_of(cache, first)[0]);
  CHECK(table_of(cache, second)[1] != table_of(cache, first)[1]);
  REQUIRE(cache.append(second, 101));
  CHECK(cache.statistics().copies == 1);

  const auto kept = table_of(cache, third)[1];
  REQUIRE(cache.append(first, 102));
  CHECK(cache.statistics().copies == 2);
  REQUIRE(cache.append(third, 103));
  CHECK(cache.statistics().copies == 2);
  CHECK(table_of(cache, third)[1] == kept);
  check_sound(cache);
  release_all(cache, {first, second, third});
}

TEST_CASE("a fork of whole blocks copies nothing", "[cache][copy_on_write]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto first = create_committed(cache, text(0, 8));
  const auto second = cache.fork(first).value();
  REQUIRE(cache.append(first, 1));
  REQUIRE(cache.append(second, 2));
  CHECK(cache.statistics().copies == 0);
  CHECK(cache.statistics().blocks.in_use == 4);
  release_all(cache, {first, second});
}

TEST_CASE("writing into a published block after a truncation copies it and leaves it findable",
          "[cache][copy_on_write]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 8));
  REQUIRE(cache.truncate(id, 6));
  CHECK(num_cached(cache, text(0, 8)) == 8);
  REQUIRE(cache.append(id, text(50, 3)));
  CHECK(cache.statistics().copies == 1);
  CHECK(num_cached(cache, text(0, 8)) == 8);
  auto rewritten = text(0, 6);
  rewritten.insert(rewritten.end(), {50, 51});
  REQUIRE(cache.commit(id, 9));
  CHECK(num_cached(cache, rewritten) == 8);
  check_sound(cache);
  release_all(cache, {id});
}

TEST_CASE("a copy that does not fit refuses the append and changes nothing", "[cache][copy_on_write]") {
  auto cache = kv_cache<>{small_cache(2)};
  const auto first = create_committed(cache, text(0, 6));
  const auto second = cache.fork(first).value();
  const auto before = table_of(cache, first);
  const auto refused = cache.append(first, 1);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::capacity_exhausted);
  CHECK(table_of(cache, first) == before);
  CHECK(cache.describe(first)->num_tokens == 6);
  CHECK(cache.statistics().refusals == 1);
  REQUIRE(cache.release(second));
  CHECK(cache.append(first, 1));
  CHECK(cache.statistics().copies == 0);
  release_all(cache, {first});
}

TEST_CASE("a fork of tokens that are still to be written is refused", "[cache][fork]") {
  auto cache = kv_cache<>{small_cache(4)};
  const auto id = cache.create_sequence(text(0, 5)).value().id;
  CHECK(cache.fork(id).error().code == error_code::invalid_argument);
  REQUIRE(cache.commit(id, 5));
  const auto fork = cache.fork(id);
  REQUIRE(fork);
  CHECK(cache.describe(*fork)->num_tokens == 5);
  release_all(cache, {id, *fork});
}

TEST_CASE("a run that fits into the last block is appended once", "[cache][append]") {
  auto cache = kv_cache<>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 5));
  REQUIRE(cache.append(id, text(50, 2)));
  auto kept = std::array<token, 7>{};
  CHECK(cache.describe(id)->num_tokens == 7);
  REQUIRE(cache.tokens(id, 0, kept));
  CHECK(kept == std::array<token, 7>{0, 1, 2, 3, 4, 50, 51});
  release_all(cache, {id});
}

TEST_CASE("appending allocates no memory up to the expected length", "[cache][append]") {
  auto cache = kv_cache<>{small_cache(100)};
  const auto id = cache.create_sequence(text(0, 3), {.expected_tokens = 400}).value().id;
  const auto before = allocation_count();
  for (auto i = 3; i < 400; ++i) {
    static_cast<void>(cache.append(id, i));
    static_cast<void>(cache.commit(id, i + 1));
  }
  CHECK(allocation_count() == before);
  CHECK(cache.describe(id)->num_computed_tokens == 400);
  release_all(cache, {id});
}

TEST_CASE("in a steady state no operation on sequences allocates", "[cache][append]") {
  auto cache = kv_cache<>{small_cache(16)};
  const auto prompt = text(0, 10);
  const auto more = text(10, 9);
  const auto turn = [&] {
    const auto id = cache.create_sequence(prompt).value().id;
    auto done = cache.append(id, more).has_value() && cache.commit(id, 19).has_value();
    const auto fork = cache.fork(id).value();
    done = done && cache.append(fork, 1) && cache.truncate(fork, 5) && cache.drop_before(id, 8);
    return done && cache.release(fork) && cache.release(id);
  };
  REQUIRE(turn());
  REQUIRE(turn());
  const auto before = allocation_count();
  auto all_done = true;
  for (auto i = 0; i < 100; ++i) {
    all_done = turn() && all_done;
  }
  CHECK(allocation_count() == before);
  CHECK(all_done);
}
