#include "../support/cache_fixture.hpp"

using namespace pagedkv;
using namespace pagedkv::test;

TEST_CASE("metadata is at most 128 bytes for each block of 16 tokens", "[cache][memory]") {
  auto config = small_cache(100'000, 16);
  config.num_kv_heads = config.head_dim = 1;
  config.max_sequences = 1024;
  auto cache = kv_cache<>{config};
  CHECK(cache.memory().metadata() <= std::int64_t{128} * config.num_blocks);

  // A full pool and its block tables included.
  const auto id = cache.create_sequence(text(0, 1'600'000)).value().id;
  REQUIRE(cache.commit(id, 1'600'000));
  CHECK(cache.statistics().blocks.free == 0);
  const auto full = cache.memory();
  CHECK(full.metadata() - full.sequences <= std::int64_t{128} * config.num_blocks);
  CHECK(full.sequences >= std::int64_t{4} * config.num_blocks);
  release_all(cache, {id});
  CHECK(cache.memory().metadata() <= full.metadata());
}

TEST_CASE("the payload has the size that the layout plans", "[cache][memory]") {
  const auto config = small_cache(10);
  auto cache = kv_cache<int8>{config};
  CHECK(cache.memory().payload == plan_storage<nhd_layer_major>(config, size_of_element<int8>)->bytes);
}

TEST_CASE("statistics count tokens, waste and sharing", "[cache][statistics]") {
  auto cache = kv_cache<>{small_cache(10)};
  const auto first = create_committed(cache, text(0, 6));
  const auto second = cache.fork(first).value();
  const auto statistics = cache.statistics();
  CHECK(statistics.blocks == block_counts{8, 2, 0, 0});
  CHECK(statistics.num_sequences == 2);
  CHECK(statistics.num_tokens == 12);
  CHECK(statistics.unfilled_slots == 4);
  CHECK(statistics.prompts == 1);
  CHECK(statistics.prompt_blocks == 1);
  CHECK(statistics.peak_in_use == 2);
  release_all(cache, {first, second});
  CHECK(cache.statistics().peak_in_use == 2);
  CHECK(cache.statistics().num_tokens == 0);
}
