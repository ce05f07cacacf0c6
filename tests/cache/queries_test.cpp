#include "../support/cache_fixture.hpp"
#include "../support/messages.hpp"
#include "../support/policy_matrix.hpp"

#include <catch2/catch_template_test_macros.hpp>

#include <algorithm>
#include <span>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

template <class Locking>
using cache_under = kv_cache<float32, Locking, clock_sweep>;

}  // namespace

TEMPLATE_LIST_TEST_CASE("a constant cache answers every query", "[cache][queries]", all_lockings) {
  auto cache = cache_under<TestType>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 6));
  const auto& constant = cache;
  auto blocks = std::vector<block_id>(2);
  auto slots = std::vector<slot>(6);
  auto batch = padded_batch{4, 8};
  const auto ids = std::vector{id};
  CHECK(constant.describe(id)->num_tokens == 6);
  CHECK(constant.block_table(id, blocks).value() == 2);
  CHECK(constant.slot_mapping(id, 0, slots));
  auto tokens = std::vector<token>(4);
  CHECK(constant.tokens(id, 2, tokens));
  CHECK(tokens == text(2, 4));
  CHECK(constant.tokens(id, 3, tokens).error().code == error_code::invalid_argument);
  CHECK(constant.keys(id, {}).value() == 0);
  CHECK(constant.update(batch, ids));
  CHECK(constant.find_prefix(text(0, 6)) == 4);
  CHECK(constant.gain_of_releasing(ids)->at_once == 2);
  CHECK(constant.fewest_to_release(ids, 1)->size() == 1);
  CHECK(constant.would_fit(text(0, 6))->num_new_blocks == 1);
  CHECK(constant.num_free_blocks() == 6);
  CHECK(constant.num_available_blocks() == 6);
  CHECK(constant.statistics().num_sequences == 1);
  CHECK(constant.memory().payload > 0);
  CHECK(constant.time() == timestamp{0});
  CHECK(constant.check_invariants().empty());
  release_all(cache, ids);
}

TEMPLATE_LIST_TEST_CASE("a pin tells its blocks", "[cache][queries]", all_lockings) {
  auto cache = cache_under<TestType>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 10));
  const auto pinned = cache.pin(text(0, 10))->id;
  const auto& constant = cache;
  auto held = std::vector<block_id>(3);
  auto blocks = std::vector<block_id>(2);
  REQUIRE(constant.block_table(id, held));
  REQUIRE(constant.block_table(pinned, blocks).value() == 2);
  CHECK(std::ranges::equal(blocks, std::span{held}.first(2)));
  blocks[0] = no_block;
  REQUIRE(constant.block_table(pinned, blocks, 1).value() == 2);
  CHECK(blocks[0] == held[1]);
  CHECK(said(constant.block_table(pinned, std::span{blocks}.first(1))) == invalid("room for block ids is 1, limit 2"));
  CHECK(said(constant.block_table(pinned, blocks, 3)) == invalid("first block to copy is 3, limit 2"));
  CHECK(constant.block_table(pinned, blocks, 0, 1).error().code == error_code::invalid_argument);
  REQUIRE(cache.unpin(pinned));
  CHECK(constant.block_table(pinned, blocks).error().code == error_code::unknown_pin);
  release_all(cache, {id});
}

TEMPLATE_LIST_TEST_CASE("free and available blocks are counted apart", "[cache][queries]", all_lockings) {
  auto cache = cache_under<TestType>{small_cache(8)};
  const auto id = create_committed(cache, text(0, 12));
  CHECK(cache.num_free_blocks() == 5);
  CHECK(cache.num_available_blocks() == 5);
  REQUIRE(cache.release(id));
  CHECK(cache.num_free_blocks() == 5);
  CHECK(cache.num_available_blocks() == 8);
}

TEST_CASE("a policy that never evicts makes no cached block available", "[cache][queries]") {
  auto cache = kv_cache<float32, single_thread, no_eviction>{small_cache(8)};
  REQUIRE(cache.release(create_committed(cache, text(0, 12))));
  CHECK(cache.num_free_blocks() == 5);
  CHECK(cache.num_available_blocks() == 5);
}

TEMPLATE_LIST_TEST_CASE("find_prefix and creation agree where a prompt ends on a block", "[cache][queries]",
                        all_lockings) {
  auto cache = cache_under<TestType>{small_cache(8)};
  REQUIRE(cache.release(create_committed(cache, text(0, 12))));
  for (const auto size : {0U, 1U, 4U, 5U, 8U, 11U, 12U, 13U}) {
    CAPTURE(size);
    const auto found = cache.find_prefix(text(0, size));
    CHECK(found == (size == 0 ? 0 : (size - 1) / 4 * 4));
    CHECK(cache.would_fit(text(0, size))->num_cached_tokens == found);
    const auto made = cache.create_sequence(text(0, size)).value();
    CHECK(made.num_cached_tokens == found);
    REQUIRE(cache.release(made.id));
  }
  CHECK(cache.pin(text(0, 12))->num_tokens == 12);  // leaves no token to compute
}

TEMPLATE_LIST_TEST_CASE("would_fit gives the error of creation and takes nothing", "[cache][queries]", all_lockings) {
  auto config = small_cache(8);
  config.max_sequences = 2;
  auto cache = cache_under<TestType>{config};
  const auto agree = [&](const tokens& prompt, const sequence_options& options = {}) {
    const auto before = cache.statistics();
    const auto forecast = cache.would_fit(prompt, options);
    CHECK(cache.statistics().blocks == before.blocks);
    CHECK(cache.statistics().refusals == before.refusals);
    const auto made = cache.create_sequence(prompt, options);
    REQUIRE_FALSE(made);
    REQUIRE_FALSE(forecast);
    CHECK(forecast.error().message() == made.error().message());
    return forecast.error().code;
  };
  CHECK(agree(text(0, 33)) == error_code::never_fits);
  CHECK(agree(text(0, 4), {.priority = 101}) == error_code::invalid_argument);
  const auto first = create_committed(cache, text(0, 20));
  CHECK(cache.would_fit(text(0, 28))->num_new_blocks == 2);
  CHECK(agree(text(50, 13)) == error_code::capacity_exhausted);

  const auto ids = std::vector{first};
  const auto step = cache.begin_step(ids).value();
  REQUIRE(cache.release(first));
  CHECK(agree(text(50, 13)) == error_code::capacity_exhausted);  // names the step to wait for
  CHECK(cache.would_fit(text(50, 13)).error().step == step);
  REQUIRE(cache.retire_step(step));
  CHECK(cache.would_fit(text(50, 32)));

  const auto second = cache.create_sequence(text(0, 4)).value().id;
  const auto third = cache.create_sequence(text(0, 4)).value().id;
  CHECK(agree(text(0, 4)) == error_code::limit_reached);
  release_all(cache, {second, third});
}

TEMPLATE_LIST_TEST_CASE("the common prefix of a batch is its full blocks in common", "[cache][queries]", all_lockings) {
  auto cache = cache_under<TestType>{small_cache(400)};
  const auto common = [&](const std::vector<sequence_id>& ids) { return cache.common_prefix(ids).value(); };
  const auto first = create_committed(cache, text(0, 14));
  auto parting = text(0, 8);
  parting.insert(parting.end(), {90, 91, 92, 93, 94});
  const auto second = create_committed(cache, parting);
  const auto forked = cache.fork(first).value();
  CHECK(common({}) == 0);
  CHECK(common({first}) == 3);
  CHECK(common({first, forked}) == 3);  // the fourth is shared, but not full
  CHECK(common({first, second, forked}) == 2);
  CHECK(common({second, first}) == 2);
  const auto apart = create_committed(cache, text(500, 8));
  CHECK(common({first, apart}) == 0);
  const auto unknown = std::vector{first, sequence_id{}};
  CHECK(cache.common_prefix(unknown).error().code == error_code::unknown_sequence);
  REQUIRE(cache.drop_before(second, 4));
  CHECK(common({first, second}) == 0);

  const auto long_one = create_committed(cache, text(2000, 1200));  // longer than is compared at a time
  const auto longer = cache.create_sequence(text(2000, 1202)).value().id;
  CHECK(common({long_one, longer}) == 300);
  CHECK(common({longer, long_one, long_one}) == 300);
  release_all(cache, {first, second, forked, apart, long_one, longer});
}
