#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>

#include <xxhash.h>
#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <thread>
#include <vector>

namespace {

using namespace pagedkv;

template <event_kinds Kinds>
using reporting_cache = kv_cache<float32, basic_event_queues<Kinds>>;

constexpr auto small =
    cache_config{.block_size = 2, .num_blocks = 4, .num_kv_heads = 1, .head_dim = 1, .hash_seed = 42};

/// An event and its tokens, copied during the visit.
struct seen_event : cache_event {
  std::vector<token> run;
  std::vector<prefix_key> run_keys;
};

template <event_kinds Kinds>
struct watched_cache {
  explicit watched_cache(const cache_config& config)
      : queues(config.block_size, {.num_producers = 1}), cache(config, queues) {}

  std::vector<seen_event> drain() {
    auto drained = std::vector<seen_event>{};
    queues.drain([&](const cache_event& event) {
      drained.push_back({event, {event.tokens.begin(), event.tokens.end()}, {event.keys.begin(), event.keys.end()}});
    });
    CHECK(queues.num_dropped() == 0);
    return drained;
  }

  basic_event_queues<Kinds> queues;
  reporting_cache<Kinds> cache;
};

/// The definition in docs/events.md.
std::uint64_t hash_of_salt(std::uint64_t seed, salt tag) {
  const auto value = static_cast<std::uint64_t>(tag);
  auto bytes = std::array<unsigned char, 8>{};
  for (auto i = 0U; i < 4; ++i) {
    bytes[i] = static_cast<unsigned char>(value >> (32 + 8 * i));
    bytes[4 + i] = static_cast<unsigned char>(value >> (8 * i));
  }
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}
std::uint64_t hash_of_block(std::uint64_t previous, std::span<const token> tokens) {
  auto bytes = std::vector<unsigned char>{};
  for (const auto t : tokens) {
    for (auto i = 0U; i < 4; ++i) {
      bytes.push_back(static_cast<unsigned char>(static_cast<std::uint32_t>(t) >> (8 * i)));
    }
  }
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), previous);
}

TEST_CASE("hashes are those of the definition, the same in every run with a seed", "[events]") {
  auto watched = watched_cache<prefix_event_kinds>{small};
  const auto tag = make_salt(7, 11);
  const auto prompt = std::array<token, 5>{1, 2, 3, -4, 5};
  const auto id = watched.cache.create_sequence(prompt, {.salt = tag}).value().id;
  REQUIRE(watched.cache.commit(id, 5).has_value());
  const auto stored = watched.drain();
  REQUIRE(stored.size() == 2);

  const auto root = hash_of_salt(42, tag);
  const auto first = hash_of_block(root, std::span{prompt}.first(2));
  const auto second = hash_of_block(first, std::span{prompt}.subspan(2, 2));
  CHECK(stored[0].parent_hash == root);
  CHECK(stored[0].hash == first);
  CHECK(stored[1].parent_hash == first);
  CHECK(stored[1].hash == second);
  CHECK(root == 0x6aca5a2d6c87a06c);
  CHECK(first == 0xf44938e67c8c8945);
  CHECK(second == 0x955de80c5d3307d2);
  CHECK(hash_of_salt(42, salt::none) == 0x4596708167f8eb2e);
}

std::uint64_t hash_of_key(std::uint64_t previous, const prefix_key& key) {
  auto bytes = std::vector<unsigned char>{};
  for (const auto word : {static_cast<std::uint64_t>(key.position), key.value[0], key.value[1]}) {
    for (const auto half : {word >> 32, word & 0xffff'ffff}) {
      for (auto i = 0U; i < 4; ++i) {
        bytes.push_back(static_cast<unsigned char>(half >> (8 * i)));
      }
    }
  }
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), previous);
}

TEST_CASE("hashes of blocks with keys are those of the definition, and events carry the keys", "[events]") {
  auto watched = watched_cache<prefix_event_kinds>{small};
  const auto prompt = std::array<token, 4>{1, 2, 3, 4};
  const auto keys = std::array{prefix_key{2, {5, 6}}, prefix_key{3, {0x123456789, 7}}};
  const auto id = watched.cache.create_sequence({prompt, keys}).value().id;
  REQUIRE(watched.cache.commit(id, 4).has_value());
  const auto stored = watched.drain();
  REQUIRE(stored.size() == 2);
  CHECK(stored[0].run_keys.empty());
  CHECK(stored[1].run_keys == std::vector(keys.begin(), keys.end()));
  const auto first = hash_of_block(hash_of_salt(42, salt::none), std::span{prompt}.first(2));
  const auto second = hash_of_block(hash_of_key(hash_of_key(first, keys[0]), keys[1]), std::span{prompt}.subspan(2));
  CHECK(stored[0].hash == first);
  CHECK(stored[1].parent_hash == first);
  CHECK(stored[1].hash == second);
  CHECK(second == 0x54c228be0b5c83a3);
}

TEST_CASE("without a seed two caches hash differently", "[events]") {
  auto config = small;
  config.hash_seed = 0;
  const auto hash_in_new_cache = [&] {
    auto watched = watched_cache<prefix_event_kinds>{config};
    const auto id = watched.cache.create_sequence(std::array<token, 2>{1, 2}).value().id;
    REQUIRE(watched.cache.commit(id, 2).has_value());
    return watched.drain().front().hash;
  };
  CHECK(hash_in_new_cache() != hash_in_new_cache());
}

TEST_CASE("a router's queue gets stored and evicted blocks and resets, and nothing else", "[events]") {
  auto watched = watched_cache<prefix_event_kinds>{small};
  auto& cache = watched.cache;
  const auto tag = salt{9};
  const auto first = cache.create_sequence(std::array<token, 5>{1, 2, 3, 4, 5}, {.salt = tag}).value().id;
  REQUIRE(cache.commit(first, 5).has_value());
  const auto stored = watched.drain();
  REQUIRE(stored.size() == 2);
  CHECK((stored[0].kind == event_kind::stored && stored[1].kind == event_kind::stored));
  CHECK(stored[0].run == std::vector<token>{1, 2});
  CHECK(stored[1].run == std::vector<token>{3, 4});
  CHECK((stored[0].salt == tag && stored[1].salt == tag));
  CHECK(stored[0].origin == no_block);
  CHECK(stored[1].origin == stored[0].block);
  CHECK(stored[1].parent_hash == stored[0].hash);

  const auto second = cache.fork(first).value();
  REQUIRE(cache.append(second, 6).has_value());
  REQUIRE(cache.release(first).has_value());
  REQUIRE(cache.release(second).has_value());
  CHECK(watched.drain().empty());

  const auto other = cache.create_sequence(std::array<token, 6>{7, 7, 7, 7, 7, 7}).value().id;
  const auto evicted = watched.drain();
  REQUIRE(evicted.size() == 1);
  CHECK(evicted[0].kind == event_kind::evicted);
  CHECK(evicted[0].block == stored[1].block);
  CHECK(evicted[0].hash == stored[1].hash);

  REQUIRE(cache.release(other).has_value());
  CHECK(cache.reset_prefix_cache().value() == 1);
  const auto reset = watched.drain();
  REQUIRE(reset.size() == 1);
  CHECK(reset[0].kind == event_kind::reset);
  CHECK(reset[0].num_blocks == 1);
}

TEST_CASE("a stream of all kinds tells of sequences, steps, copies and refusals", "[events]") {
  auto watched = watched_cache<all_event_kinds>{small};
  auto& cache = watched.cache;
  const auto prompt = std::array<token, 5>{1, 2, 3, 4, 5};
  const auto first = cache.create_sequence(prompt, {.salt = salt{9}}).value().id;
  auto seen = watched.drain();
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].kind == event_kind::admitted);
  CHECK(seen[0].sequence == first);
  CHECK(seen[0].num_tokens == 5);
  CHECK(seen[0].num_blocks == 3);
  CHECK(seen[0].salt == salt{9});

  REQUIRE(cache.commit(first, 5).has_value());
  const auto stored = watched.drain();
  const auto second = cache.fork(first).value();
  REQUIRE(cache.append(second, 6).has_value());
  seen = watched.drain();
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].kind == event_kind::forked);
  CHECK(seen[0].sequence == second);
  CHECK(seen[0].source == first);
  CHECK(seen[1].kind == event_kind::copied);
  CHECK(seen[1].block != seen[1].origin);

  CHECK_FALSE(cache.create_sequence(std::array<token, 9>{}).has_value());
  CHECK_FALSE(cache.create_sequence(std::array<token, 2>{}).has_value());
  seen = watched.drain();
  REQUIRE(seen.size() == 2);
  CHECK((seen[0].kind == event_kind::refused && seen[1].kind == event_kind::refused));
  CHECK((seen[0].num_blocks == 5 && seen[0].num_available == 4));
  CHECK((seen[1].num_blocks == 1 && seen[1].num_available == 0));

  const auto step = cache.begin_step(std::array{first}).value();
  REQUIRE(cache.release(second).has_value());
  REQUIRE(cache.retire_step(step).has_value());
  CHECK_FALSE(cache.retire_step(step).has_value());
  seen = watched.drain();
  REQUIRE(seen.size() == 3);
  CHECK((seen[0].kind == event_kind::step_begun && seen[0].step == step));
  CHECK((seen[1].kind == event_kind::released && seen[1].sequence == second && seen[1].num_tokens == 6));
  CHECK((seen[2].kind == event_kind::step_retired && seen[2].step == step));

  const auto third = cache.create_sequence(prompt, {.salt = salt{9}}).value().id;
  seen = watched.drain();
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].kind == event_kind::hit);
  CHECK(seen[0].sequence == third);
  CHECK(seen[0].num_tokens == 4);
  CHECK(seen[0].num_blocks == 2);
  CHECK(seen[0].block == stored[1].block);
  CHECK(seen[0].hash == stored[1].hash);
  CHECK(seen[1].kind == event_kind::admitted);
}

TEST_CASE("a request tracker reports starts, preemptions and ends through its cache's stream", "[events]") {
  auto watched = watched_cache<event_kinds{event_kind::started, event_kind::preempted, event_kind::ended}>{small};
  auto tracker = request_tracker{watched.cache};
  const auto is = [](const cache_event& event, event_kind kind, request_id request, sequence_id sequence) {
    return event.kind == kind && event.request == request && event.sequence == sequence;
  };
  const auto prompt = std::array<token, 6>{1, 2, 3, 4, 5, 6};
  const auto low = tracker.submit(prompt).value();
  auto options = request_options{};
  options.sequence.priority = 90;
  options.may_preempt = true;
  const auto high = tracker.submit(prompt, options).value();
  auto seen = watched.drain();
  REQUIRE(seen.size() == 3);
  CHECK(is(seen[0], event_kind::started, low.id, low.sequence));
  CHECK(is(seen[1], event_kind::preempted, low.id, low.sequence));
  CHECK(is(seen[2], event_kind::started, high.id, high.sequence));

  REQUIRE(watched.cache.commit(high.sequence, 6).has_value());
  const auto forked = tracker.fork(high.id).value();
  REQUIRE(tracker.finish(high.id).has_value());
  REQUIRE(tracker.cancel(forked.id).has_value());
  const auto resumed = tracker.resume(low.id, prompt).value();
  REQUIRE(tracker.fail(low.id, {}).has_value());
  CHECK_FALSE(tracker.finish(low.id).has_value());
  seen = watched.drain();
  REQUIRE(seen.size() == 5);
  CHECK(is(seen[0], event_kind::started, forked.id, forked.sequence));
  CHECK(is(seen[1], event_kind::ended, high.id, sequence_id{}));
  CHECK(is(seen[2], event_kind::ended, forked.id, sequence_id{}));
  CHECK(is(seen[3], event_kind::started, low.id, resumed.sequence));
  CHECK(is(seen[4], event_kind::ended, low.id, sequence_id{}));
}

/// A router that knows only events: contents are cached while more of them were stored than evicted.
class router {
 public:
  void follow(const cache_event& event) {
    if (event.kind == event_kind::reset) {
      cached_.clear();
      return;
    }
    const auto counted = cached_.try_emplace(event.hash, 0).first;
    counted->second += event.kind == event_kind::stored ? 1 : -1;
    if (counted->second == 0) {
      cached_.erase(counted);
    }
  }

  [[nodiscard]] std::int64_t find_prefix(std::span<const token> tokens, salt tag) const {
    auto hash = hash_of_salt(small.hash_seed, tag);
    auto num_tokens = std::size_t{0};
    for (; num_tokens + 2 < tokens.size(); num_tokens += 2) {  // one token is left to compute
      hash = hash_of_block(hash, tokens.subspan(num_tokens, 2));
      if (!cached_.contains(hash)) {
        break;
      }
    }
    return static_cast<std::int64_t>(num_tokens);
  }

  /// Blocks of any contents.
  [[nodiscard]] std::int64_t num_blocks() const {
    return std::accumulate(cached_.begin(), cached_.end(), std::int64_t{0},
                           [](std::int64_t sum, const auto& entry) { return sum + entry.second; });
  }

 private:
  std::map<std::uint64_t, int> cached_;
};

TEST_CASE("a router finds by events the prefixes that the cache finds", "[events][random]") {
  auto config = small;
  config.num_blocks = 24;
  auto watched = watched_cache<prefix_event_kinds>{config};
  auto& cache = watched.cache;
  auto follower = router{};
  const auto seed = Catch::getSeed();
  INFO("seed " << seed);
  auto random = std::mt19937{seed};
  auto live = std::vector<sequence_id>{};
  const auto random_tag = [&] { return salt{random() % 2}; };
  for (auto round = 0; round < 3000; ++round) {
    auto prompt = std::vector<token>(1 + random() % 12);
    for (auto& t : prompt) {
      t = static_cast<token>(random() % 2);
    }
    if (const auto made = cache.create_sequence(prompt, {.salt = random_tag()})) {
      REQUIRE(cache.commit(made->id, static_cast<std::int64_t>(prompt.size())).has_value());
      live.push_back(made->id);
    }
    while (live.size() > random() % 5) {
      REQUIRE(cache.release(live.back()).has_value());
      live.pop_back();
    }
    if (live.empty() && random() % 64 == 0) {
      REQUIRE(cache.reset_prefix_cache().has_value());
    }
    watched.queues.drain([&](const cache_event& event) { follower.follow(event); });
    const auto asked_tag = random_tag();
    REQUIRE(follower.find_prefix(prompt, asked_tag) == cache.find_prefix(prompt, asked_tag));
  }
  CHECK(watched.queues.num_dropped() == 0);
}

TEST_CASE("a router that follows several threads knows every cached block in the end", "[events][random]") {
  constexpr auto num_threads = 4;
  auto config = small;
  config.num_blocks = 32;
  auto queues = event_queues{config.block_size, {.capacity = 1 << 14}};
  auto cache = kv_cache<float32, lock_free, clock_sweep, event_queues>{config, queues};
  auto follower = router{};
  const auto seed = Catch::getSeed();
  INFO("seed " << seed);
  auto num_running = std::atomic{num_threads};
  auto threads = std::vector<std::jthread>{};
  for (auto i = 0; i < num_threads; ++i) {
    threads.emplace_back([&, i] {
      auto random = std::mt19937{seed + static_cast<unsigned>(i)};
      for (auto round = 0; round < 400; ++round) {
        auto prompt = std::array<token, 7>{};
        for (auto& t : prompt) {
          t = static_cast<token>(random() % 2);
        }
        if (const auto made = cache.create_sequence(prompt)) {
          static_cast<void>(cache.commit(made->id, 7));
          static_cast<void>(cache.release(made->id));
        }
      }
      --num_running;
    });
  }
  const auto follow = [&](const cache_event& event) { follower.follow(event); };
  while (num_running > 0) {
    queues.drain(follow);
    std::this_thread::yield();
  }
  queues.drain(follow);
  CHECK(queues.num_dropped() == 0);
  CHECK(cache.statistics().blocks.in_use == 0);
  CHECK(follower.num_blocks() == cache.statistics().blocks.evictable);
  for (auto bits = 0; bits < 64; ++bits) {
    auto prompt = std::array<token, 6>{};
    for (auto i = 0U; i < 6; ++i) {
      prompt[i] = bits >> i & 1;
    }
    CHECK(follower.find_prefix(prompt, salt::none) >= cache.find_prefix(prompt));
  }
}

TEST_CASE("a cache is created with a stream of events, as it is constructed", "[events]") {
  auto queues = basic_event_queues<all_event_kinds>{small.block_size, {.num_producers = 1}};
  const auto cache = reporting_cache<all_event_kinds>::create(small, queues).value();
  REQUIRE(cache->create_sequence(std::array<token, 3>{1, 2, 3}));
  CHECK(queues.drain([](const cache_event&) {}) == 1);
}

}  // namespace
