#include <pagedkv/pool/block_states.hpp>

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

TEST_CASE("leases are counted apart from references", "[block_state]") {
  constexpr auto evictable = block_state::fresh().with_published(true).unreferenced();
  CHECK(evictable.leases() == 0);
  CHECK(evictable.leased().leases() == 1);
  CHECK(evictable.leased().count() == 0);
  CHECK(evictable.leased().evictable());
  CHECK(evictable.leased().unleased().word() == evictable.word());

  constexpr auto most_leases = block_state{std::uint64_t{block_state::max_leases} << 20}.with_published(true);
  CHECK(most_leases.leases() == block_state::max_leases);
  CHECK(most_leases.published());
  CHECK(most_leases.count() == 0);
  CHECK(most_leases.referable());
}

TEST_CASE("a reference fits only if every look can become one", "[block_state]") {
  constexpr auto nearly_full = block_state{block_state::max_count - 1};
  CHECK(nearly_full.referable());
  CHECK_FALSE(nearly_full.leased().referable());
  CHECK_FALSE(nearly_full.referenced().referable());
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
