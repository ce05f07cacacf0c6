#include "../support/full_numbers.hpp"

#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/locking/all.hpp>
#include <pagedkv/router/keys.hpp>
#include <pagedkv/router/worker_feed.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

using namespace pagedkv;

constexpr auto block_size = std::size_t{4};
constexpr auto num_prompts = 8U;

/// Prompts of few contents, so that threads store and evict the same ones.
std::vector<token> prompt(unsigned which) {
  auto tokens = std::vector<token>(block_size * (2 + which % 3) + 1);
  std::iota(tokens.begin(), tokens.end(), 0);
  tokens[block_size] = static_cast<token>(which);
  return tokens;
}

/// Takes the events of a cache, counts those that come before the one that they undo, and feeds an index.
struct consumer {
  event_queues& queues;
  worker_feed<cache_keys>& feed;
  std::map<std::uint64_t, int> num_stored = {};  // by hash
  int num_early = 0;

  void drain() {
    queues.drain([&](const cache_event& event) {
      auto& stored = num_stored[event.hash];
      if (event.kind == event_kind::stored) {
        ++stored;
      } else if (--stored < 0) {
        ++num_early;
      }
      feed.apply(event);
    });
  }
};

template <class Cache>
void serve(Cache& cache, std::uint32_t seed, bool invalidates) {
  auto random = std::mt19937{seed};
  for (auto i = 0; i < 1'500; ++i) {
    const auto tokens = prompt(random() % num_prompts);
    if (invalidates && random() % 16 == 0) {
      cache.invalidate_prefix(tokens);
    } else if (const auto made = cache.create_sequence(tokens)) {
      static_cast<void>(cache.commit(made->id, std::ssize(tokens)));
      static_cast<void>(cache.release(made->id));
    }
  }
}

template <class Cache>
void follow_threads(const group_list& groups, std::uint32_t seed, bool invalidates) {
  auto config = cache_config{};
  config.block_size = static_cast<std::int32_t>(block_size);
  config.num_blocks = 12;
  config.head_dim = 1;
  config.hash_seed = 5;
  config.groups = groups;
  auto queues = event_queues{config.block_size, {.capacity = 1 << 14, .num_producers = 8, .max_keys = 1}};
  auto cache = Cache{config, queues};
  auto index = worker_index{{.num_blocks = 64, .num_workers = 1}};
  auto feed = worker_feed{index, worker_id{0}, cache_keys{config.hash_seed}};
  auto router = consumer{queues, feed};

  constexpr auto num_threads = std::is_same_v<typename Cache::locking_type, single_thread> ? 1U : 3U;
  auto num_running = std::atomic{num_threads};
  {
    auto threads = std::vector<std::jthread>{};
    for (auto i = 0U; i < num_threads; ++i) {
      threads.emplace_back([&, i] {
        serve(cache, seed + i, invalidates);
        --num_running;
      });
    }
    while (num_running > 0) {
      router.drain();
    }
  }
  router.drain();
  REQUIRE(queues.num_dropped() == 0);
  CHECK(router.num_early == 0);
  CHECK(feed.num_refused() == 0);
  CHECK((invalidates || feed.num_orphans() == 0));

  // The index has all that the cache has,
  auto num_found = std::int64_t{0};
  for (auto which = 0U; which < num_prompts; ++which) {
    const auto tokens = prompt(which);
    auto keys = std::array<std::uint64_t, 8>{};
    const auto count = prompt_keys(feed.keys(), tokens, block_size, keys);
    auto held = std::array<std::int64_t, 1>{};
    index.num_held(std::span(keys).first(count), held);
    const auto found = cache.find_prefix(tokens) / config.block_size;
    CHECK(held[0] >= found);  // more, where a block was published behind a twin of the one before it
    num_found += found;
  }
  CHECK((invalidates || num_found > 0));
  // and nothing once the cache has nothing.
  auto blocks = std::vector<block_id>(static_cast<std::size_t>(config.num_blocks));
  const auto step = cache.begin_step().value();
  REQUIRE(cache.evict(blocks, step));
  REQUIRE(cache.retire_step(step));
  router.drain();
  CHECK(feed.num_blocks() == 0);
  for (const auto& [hash, count] : router.num_stored) {
    CHECK(count == 0);
    CHECK(!index.holds(worker_id{0}, hash));
  }
}

template <class Cache>
void follow_threads(const group_list& groups = {}) {
  for (auto round = 0U; round < testing::halved_if_sanitized(8U); ++round) {
    follow_threads<Cache>(groups, Catch::getSeed() + 4 * round, round % 2 != 0);
  }
}

TEMPLATE_LIST_TEST_CASE("an index follows a cache that threads use", "[router][random]", all_lockings) {
  using eviction = std::conditional_t<std::is_same_v<TestType, lock_free>, clock_sweep, lru>;
  follow_threads<kv_cache<TestType, eviction, event_queues>>();
}

TEMPLATE_TEST_CASE("an index follows a cache with groups that threads use", "[router][random]", rw_lock,
                   sharded_mutex) {
  follow_threads<group_cache<TestType, lru, event_queues>>({group_config{}});
}

}  // namespace
