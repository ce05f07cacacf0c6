#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/pagedkv.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <thread>
#include <vector>

namespace {

using namespace pagedkv;

TEST_CASE("events arrive in the order they were emitted, numbered", "[events]") {
  auto stream = event_queues<8>{};
  auto drained = std::vector<cache_event>{};
  CHECK(stream.drain(drained) == 0);
  stream.emit({.kind = event_kind::stored, .block = block_id{3}, .hash = 7});
  stream.emit({.kind = event_kind::copied, .block = block_id{4}, .origin = block_id{3}});
  CHECK(stream.drain(drained) == 2);
  stream.emit({.kind = event_kind::evicted, .block = block_id{3}, .hash = 7});
  CHECK(stream.drain(drained) == 1);
  REQUIRE(drained.size() == 3);
  CHECK(drained[0].kind == event_kind::stored);
  CHECK(drained[0].hash == 7);
  CHECK(drained[1].kind == event_kind::copied);
  CHECK(drained[1].origin == block_id{3});
  CHECK(drained[2].kind == event_kind::evicted);
  for (auto i = std::uint64_t{0}; i < 3; ++i) {
    CHECK(drained[i].number == i + 1);
  }
}

TEST_CASE("events that find no room are dropped and counted, the older ones stay", "[events]") {
  auto stream = event_queues<4>{};
  for (auto i = 0; i < 10; ++i) {
    stream.emit({.kind = event_kind::stored, .block = block_id{i}});
  }
  auto drained = std::vector<cache_event>{};
  CHECK(stream.drain(drained) == 4);
  CHECK(stream.num_dropped() == 6);
  for (auto i = 0; i < 4; ++i) {
    CHECK(drained[static_cast<std::size_t>(i)].block == block_id{i});
  }
  stream.emit({});
  CHECK(stream.drain(drained) == 1);
  CHECK(drained.back().number == 11);
  CHECK(stream.num_dropped() == 6);
}

TEST_CASE("a thread beyond the last queue has its events counted as dropped", "[events]") {
  auto stream = event_queues<4, 1>{};
  static_cast<void>(this_thread_index{}.current());
  std::jthread{[&] { stream.emit({}); }}.join();
  auto drained = std::vector<cache_event>{};
  CHECK(stream.drain(drained) + static_cast<std::size_t>(stream.num_dropped()) == 1);
}

TEST_CASE("with many producers and a slow consumer every event arrives once or is counted", "[events]") {
  constexpr auto num_producers = 4;
  constexpr auto per_producer = 20'000;
  auto stream = event_queues<64>{};
  auto running = std::atomic{num_producers};
  auto threads = std::vector<std::jthread>{};
  for (auto t = 0; t < num_producers; ++t) {
    threads.emplace_back([&, t] {
      for (auto i = 0; i < per_producer; ++i) {
        stream.emit({.kind = event_kind::stored, .block = block_id{t}, .hash = static_cast<std::uint64_t>(i)});
      }
      --running;
    });
  }
  auto drained = std::vector<cache_event>{};
  while (running > 0) {
    stream.drain(drained);
    std::this_thread::yield();
  }
  stream.drain(drained);
  CHECK(static_cast<std::int64_t>(drained.size()) + stream.num_dropped() == num_producers * per_producer);

  auto last = std::map<block_id, cache_event>{};
  for (const auto& event : drained) {
    const auto [place, first] = last.try_emplace(event.block, event);
    if (!first) {
      CHECK(event.number > place->second.number);
      CHECK(event.hash > place->second.hash);
      place->second = event;
    }
  }
  std::ranges::sort(drained, {}, &cache_event::number);
  const auto twice = std::ranges::adjacent_find(drained, {}, &cache_event::number);
  CHECK(twice == drained.end());
}

using reporting_cache = kv_cache<float32, single_thread, lru, host_allocator, host_backend, memory_layout<>, xxh3_hash,
                                 event_queues<64, 1>>;

std::vector<cache_event> drain(reporting_cache& cache) {
  auto drained = std::vector<cache_event>{};
  cache.events().drain(drained);
  return drained;
}

TEST_CASE("a cache reports stored, copied and evicted blocks", "[events]") {
  auto cache = reporting_cache{{.block_size = 2, .num_blocks = 4, .num_kv_heads = 1, .head_dim = 1}};
  const auto prompt = std::vector<token>{1, 2, 3, 4, 5};
  const auto first = cache.create_sequence(prompt).value().id;
  REQUIRE(cache.commit(first, 5).has_value());
  const auto stored = drain(cache);
  REQUIRE(stored.size() == 2);
  CHECK((stored[0].kind == event_kind::stored && stored[1].kind == event_kind::stored));
  CHECK(stored[0].origin == no_block);
  CHECK(stored[1].origin == stored[0].block);
  CHECK(stored[1].parent_hash == stored[0].hash);

  const auto second = cache.fork(first).value();
  REQUIRE(cache.append(second, 6).has_value());
  const auto copied = drain(cache);
  REQUIRE(copied.size() == 1);
  CHECK(copied[0].kind == event_kind::copied);
  CHECK(copied[0].block != copied[0].origin);

  REQUIRE(cache.release(first).has_value());
  REQUIRE(cache.release(second).has_value());
  CHECK(drain(cache).empty());
  const auto other = cache.create_sequence(std::vector<token>{7, 7, 7, 7, 7, 7}).value().id;
  const auto evicted = drain(cache);
  REQUIRE(evicted.size() == 1);
  CHECK(evicted[0].kind == event_kind::evicted);
  CHECK(evicted[0].block == stored[1].block);
  CHECK(evicted[0].hash == stored[1].hash);

  REQUIRE(cache.release(other).has_value());
  CHECK(cache.reset_prefix_cache().value() == 1);
  const auto reset = drain(cache);
  REQUIRE(reset.size() == 1);
  CHECK(reset[0].hash == stored[0].hash);
  CHECK(cache.events().num_dropped() == 0);
}

TEST_CASE("a request tracker reports preemptions", "[events]") {
  auto cache = reporting_cache{{.block_size = 2, .num_blocks = 4, .num_kv_heads = 1, .head_dim = 1}};
  auto tracker = request_tracker{cache};
  const auto prompt = std::vector<token>{1, 2, 3, 4, 5, 6};
  const auto low = tracker.submit(prompt).value().id;
  auto options = request_options{};
  options.sequence.priority = 90;
  options.may_preempt = true;
  REQUIRE(tracker.submit(prompt, options).has_value());
  const auto preempted = drain(cache);
  REQUIRE(preempted.size() == 1);
  CHECK(preempted[0].kind == event_kind::preempted);
  CHECK(preempted[0].request == static_cast<std::uint64_t>(low));
}

}  // namespace
