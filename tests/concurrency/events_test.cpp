#include <pagedkv/cache/event_queues.hpp>

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
  static_cast<void>(this_thread_index::current());
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

}  // namespace
