#include "../support/cache_fixture.hpp"

#include <array>
#include <limits>
#include <string>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

TEST_CASE("a refusal names the argument, what it was, and what is allowed", "[cache]") {
  auto cache = kv_cache<float32>{small_cache(20)};
  const auto id = create_committed(cache, text(0, 40));
  auto slots = std::vector<slot>(20);
  auto out = tokens(20);
  const auto said = [](const auto& refused) {
    REQUIRE_FALSE(refused);
    return refused.error().message();
  };
  const auto invalid = [](const std::string& what) { return "invalid argument: " + what; };
  auto none = small_cache(20);
  const auto with = [&](auto&& change) {
    auto config = none;
    change(config);
    return said(kv_cache<float32>::create(config));
  };

  CHECK(said(cache.slot_mapping(id, 30, slots)) ==
        invalid("end of the slot mapping, first_token + slots.size(), is 50, limit 40"));
  CHECK(said(cache.slot_mapping(id, -1, slots)) == invalid("first_token of the slot mapping is -1, limit 0"));
  CHECK(said(cache.slot_mapping(id, std::numeric_limits<std::int64_t>::max(), slots)) ==
        invalid("first_token of the slot mapping is 9223372036854775807, limit 40"));
  CHECK(said(cache.tokens(id, 30, out)) ==
        invalid("end of the tokens to copy, first_token + out.size(), is 50, limit 40"));
  CHECK(said(cache.tokens(id, -1, out)) ==
        invalid("first_token of the tokens to copy, outside of those held, is -1, limit 0"));
  CHECK(said(cache.truncate(id, 41)) == invalid("number of tokens to keep is 41, limit 40"));
  CHECK(said(cache.commit(id, 41)) == invalid("number of computed tokens is 41, limit 40"));
  CHECK(said(cache.commit(id, 39)) == invalid("number of computed tokens, fewer than committed, is 39, limit 40"));
  CHECK(said(cache.resize(0)) == invalid("number of blocks is 0, limit 1"));
  CHECK(said(cache.resize(21)) == invalid("number of blocks is 21, limit 20"));
  CHECK(said(cache.reserve_slots(id, -1)) == invalid("number of slots ahead is -1, limit 0"));
  CHECK(said(cache.invalidate_blocks(std::array{block_id{20}})) == invalid("block to invalidate is 20, limit 20"));
  CHECK(with([](auto& c) { c.block_size = 0; }) == invalid("cache_config.block_size is 0, limit 1"));
  CHECK(with([](auto& c) { c.head_dim = 0; }) == invalid("cache_config.head_dim is 0, limit 1"));
  CHECK(with([](auto& c) { c.num_blocks = 0; }) == invalid("cache_config.num_blocks is 0, limit 1"));
  CHECK(said(cache.create_sequence(text(0, 81))) ==
        "never fits: number of blocks needed is 21, limit 20");
}
