#include <pagedkv/pool/block_state.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace pagedkv;

TEST_CASE("a fresh block is in use once and nothing else", "[block_state]") {
  constexpr auto fresh = block_state::fresh();
  CHECK(fresh.count() == 1);
  CHECK_FALSE(fresh.published());
  CHECK_FALSE(fresh.claimed());
  CHECK(fresh.step() == 0);
  CHECK(fresh.unreferenced().word() == 0);
}

TEST_CASE("fields of a word do not disturb each other", "[block_state]") {
  constexpr auto full = block_state{block_state::max_count};
  CHECK(full.count() == block_state::max_count);
  CHECK(full.with_published(true).count() == block_state::max_count);
  CHECK(full.with_published(true).with_claimed(true).with_step(0xffff'ffff).count() == block_state::max_count);

  constexpr auto flags = block_state::fresh().with_published(true).with_claimed(true).with_step(7);
  CHECK(flags.published());
  CHECK(flags.claimed());
  CHECK(flags.step() == 7);
  CHECK(flags.with_published(false).claimed());
  CHECK(flags.with_claimed(false).published());
  CHECK(flags.with_step(0).published());
  CHECK(flags.with_step(9).step() == 9);
}

TEST_CASE("a reference ends the wait for a step and keeps everything else", "[block_state]") {
  constexpr auto retiring = block_state::fresh().with_published(true).unreferenced().with_step(3);
  CHECK(retiring.count() == 0);
  CHECK(retiring.referenced().count() == 1);
  CHECK(retiring.retiring());
  CHECK_FALSE(retiring.referenced().retiring());
  CHECK(retiring.referenced().unreferenced().word() == retiring.word());
  CHECK(retiring.referenced().published());
}
