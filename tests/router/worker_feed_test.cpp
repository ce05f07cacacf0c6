#include "../support/tokens.hpp"

#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/router/keys.hpp>
#include <pagedkv/router/llm_d_keys.hpp>
#include <pagedkv/router/worker_feed.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

namespace {

using namespace pagedkv;
using pagedkv::test::numbered;

template <class Keys>
Keys make_keys() {
  if constexpr (std::is_same_v<Keys, llm_d_keys>) {
    return Keys{"model"};
  } else if constexpr (std::is_same_v<Keys, cache_keys>) {
    return Keys{7};
  } else {
    return Keys{};
  }
}

TEMPLATE_TEST_CASE("an index fed by caches knows what each of them has cached", "[router][random]", cache_keys,
                   dynamo_keys, llm_d_keys) {
  constexpr auto num_workers = std::size_t{3};
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  auto config = cache_config{};
  config.block_size = 4;
  config.num_blocks = 24;
  config.head_dim = 1;
  config.hash_seed = 7;

  using cache_type = kv_cache<event_queues>;
  auto index = worker_index{{.num_blocks = 100, .num_workers = num_workers}};
  auto queues = std::vector<event_queues>{};
  auto caches = std::vector<std::unique_ptr<cache_type>>{};
  auto feeds = std::vector<std::unique_ptr<worker_feed<TestType>>>{};
  const auto keys = make_keys<TestType>();
  for (std::size_t i = 0; i < num_workers; ++i) {
    queues.emplace_back(config.block_size);
    caches.push_back(std::make_unique<cache_type>(config, queues.back()));
    feeds.push_back(std::make_unique<worker_feed<TestType>>(index, worker_id{static_cast<std::int32_t>(i)}, keys));
  }
  auto held = std::array<std::int64_t, num_workers>{};
  auto num_hits = 0;
  for (auto round = 0; round < 2'000; ++round) {
    const auto at = random() % num_workers;
    auto& cache = *caches[at];
    auto prompt = numbered(4 * (1 + random() % 5), static_cast<token>(random() % 3));
    prompt.back() += static_cast<token>(random() % 2);
    if (round % 500 == 499) {
      REQUIRE(cache.reset_prefix_cache());
    } else {
      const auto made = cache.create_sequence(prompt);
      REQUIRE(made);
      REQUIRE(cache.commit(made->id, std::ssize(prompt)));
      REQUIRE(cache.release(made->id));
    }
    queues[at].drain([&](const cache_event& event) { feeds[at]->apply(event); });

    prompt.push_back(0);
    auto asked = std::array<std::uint64_t, 8>{};
    const auto count = prompt_keys(keys, prompt, 4, asked);
    index.num_held(std::span(asked).first(count), held);
    for (std::size_t i = 0; i < num_workers; ++i) {
      REQUIRE(held[i] * config.block_size == caches[i]->find_prefix(prompt));
      num_hits += held[i] > 0;
    }
  }
  CHECK(num_hits > 0);
  for (const auto& feed : feeds) {
    CHECK(feed->num_orphans() == 0);
    CHECK(feed->num_refused() == 0);
  }
}

TEST_CASE("a block that is stored twice is there until it was removed twice", "[router]") {
  auto index = worker_index{{.num_blocks = 8}};
  auto feed = worker_feed{index, worker_id{5}, dynamo_keys{}};
  const auto tokens = numbered(4);
  feed.stored(1, std::nullopt, tokens);
  feed.stored(1, std::nullopt, tokens);
  feed.removed(1);
  CHECK(index.holds(worker_id{5}, dynamo_keys{}.first(tokens)));
  feed.removed(1);
  CHECK_FALSE(index.holds(worker_id{5}, dynamo_keys{}.first(tokens)));
  feed.removed(1);  // one too many
  CHECK(feed.num_blocks() == 0);
}

TEST_CASE("blocks that differ in what keys leave out are there until the last was removed", "[router]") {
  auto index = worker_index{{.num_blocks = 8}};
  auto feed = worker_feed{index, worker_id{5}, dynamo_keys{}};
  const auto tokens = numbered(4);
  const auto key = dynamo_keys{}.first(tokens);
  for (const auto last : {1U, 2U, 3U}) {
    for (const auto hash : {1U, 2U, 3U}) {  // of adapters, say
      feed.stored(hash, std::nullopt, tokens);
    }
    for (const auto hash : {1U, 2U, 3U}) {
      if (hash != last) {
        feed.removed(hash);
        CHECK(index.holds(worker_id{5}, key));
      }
    }
    feed.removed(last);
    CHECK_FALSE(index.holds(worker_id{5}, key));
  }
  feed.stored(1, std::nullopt, tokens);
  feed.stored(2, std::nullopt, tokens);
  feed.stored(3, std::nullopt, numbered(4, 9));  // which no other has in common
  feed.removed(3);
  CHECK_FALSE(index.holds(worker_id{5}, dynamo_keys{}.first(numbered(4, 9))));
  feed.clear();
  CHECK_FALSE(index.holds(worker_id{5}, key));
  feed.stored(1, std::nullopt, tokens);
  feed.removed(1);
  CHECK_FALSE(index.holds(worker_id{5}, key));
}

TEST_CASE("a block whose parent is unknown is left out and counted", "[router]") {
  auto index = worker_index{{.num_blocks = 8}};
  auto feed = worker_feed{index, worker_id{0}, dynamo_keys{}};
  REQUIRE(index.add(worker_id{0}, 0));
  feed.stored(2, 1, numbered(4));
  CHECK(feed.num_orphans() == 1);
  feed.removed(2);
  CHECK(feed.num_blocks() == 0);
  CHECK(index.holds(worker_id{0}, 0));  // a block without a key takes none away
}

TEST_CASE("blocks of adapters are indexed under each adapter's own keys", "[router]") {
  auto index = worker_index{{.num_blocks = 8}};
  auto feed = worker_feed{index, worker_id{0}, llm_d_keys{"model"}};
  const auto tokens = numbered(4);
  for (const auto* adapter : {"french", "", "german", "french"}) {
    const auto own = llm_d_keys{*adapter == '\0' ? "model" : adapter};
    const auto keys = std::array{own.first(tokens), own.next(own.first(tokens), tokens)};
    feed.stored(1, std::nullopt, tokens, adapter);
    feed.stored(2, 1, tokens, adapter);
    CHECK(index.holds(worker_id{0}, keys[0]));
    CHECK(index.holds(worker_id{0}, keys[1]));
    feed.removed(2);
    feed.removed(1);
    CHECK_FALSE(index.holds(worker_id{0}, keys[0]));
  }
  CHECK(feed.num_foreign() == 0);
}

TEST_CASE("blocks of adapters that keys do not tell apart are left out and counted", "[router]") {
  auto index = worker_index{{.num_blocks = 8}};
  auto feed = worker_feed{index, worker_id{0}, cache_keys{1}};
  feed.stored(1, std::nullopt, numbered(4), "french");
  CHECK(feed.num_foreign() == 1);
  feed.stored_without_name(3);
  CHECK(feed.num_foreign() == 4);
  CHECK(feed.num_blocks() == 0);
  CHECK_FALSE(index.holds(worker_id{0}, cache_keys{1}.first(numbered(4))));
}

TEST_CASE("the removal of a block that was left out removes no other of its hash", "[router]") {
  auto index = worker_index{{.num_blocks = 16, .num_workers = 1}};
  auto feed = worker_feed{index, worker_id{0}, cache_keys{1}};
  const auto tokens = std::array<token, 2>{1, 2};
  feed.stored(10, std::nullopt, tokens);
  feed.removed(10);  // while the worker computes what continues it
  feed.stored(20, 10, tokens);
  feed.stored(30, 20, tokens);
  CHECK(feed.num_orphans() == 2);
  feed.stored(10, std::nullopt, tokens);
  feed.stored(20, 10, tokens);
  const auto keys = std::array{feed.keys().first(tokens), feed.keys().next(feed.keys().first(tokens), tokens)};
  CHECK(index.holds(worker_id{0}, keys[1]));
  feed.removed(30);
  feed.removed(20);
  CHECK(index.holds(worker_id{0}, keys[1]));
  feed.removed(20);
  CHECK(!index.holds(worker_id{0}, keys[1]));
  feed.removed(10);
  CHECK(feed.num_blocks() == 0);
  CHECK(!index.holds(worker_id{0}, keys[0]));
}

TEST_CASE("a feed counts blocks for which the index has no room, and removes no other's", "[router]") {
  auto index = worker_index{{.num_blocks = 1}};
  auto feed = worker_feed{index, worker_id{0}, dynamo_keys{}};
  CHECK(feed.num_foreign() == 0);
  auto hash = std::uint64_t{0};
  while (feed.num_refused() == 0) {
    REQUIRE(hash < 1'000);
    feed.stored(hash, std::nullopt, numbered(4, static_cast<token>(4 * hash)));
    ++hash;
  }
  CHECK(feed.num_refused() == 1);
  // There is room again, and the key comes to the index from elsewhere.
  const auto key = dynamo_keys{}.first(numbered(4, static_cast<token>(4 * (hash - 1))));
  for (auto others = std::uint64_t{0}; others < hash - 1; ++others) {
    feed.removed(others);
  }
  REQUIRE(index.add(worker_id{0}, key));
  feed.removed(hash - 1);
  CHECK(index.holds(worker_id{0}, key));
}

TEST_CASE("a feed that ends takes its worker out of the index", "[router]") {
  auto index = worker_index{{.num_blocks = 8}};
  const auto key = dynamo_keys{}.first(numbered(4));
  {
    auto feed = worker_feed{index, worker_id{0}, dynamo_keys{}};
    feed.stored(1, std::nullopt, numbered(4));
    CHECK(index.holds(worker_id{0}, key));
  }
  CHECK_FALSE(index.holds(worker_id{0}, key));
}

}  // namespace
