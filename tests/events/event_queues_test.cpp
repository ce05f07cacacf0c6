#include <pagedkv/events/event_queues.hpp>

#include "../support/messages.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

using namespace pagedkv;

/// An event and its tokens, copied during the visit.
struct drained_event {
  cache_event event;
  std::vector<token> tokens;
};

template <class Queues>
std::vector<drained_event> drain(Queues& queues) {
  auto drained = std::vector<drained_event>{};
  const auto count = queues.drain([&](const cache_event& event) {
    drained.push_back({event, {event.tokens.begin(), event.tokens.end()}});
  });
  CHECK(count == drained.size());
  return drained;
}

TEST_CASE("events arrive in the order they were emitted, numbered, with their tokens", "[events]") {
  auto queues = event_queues{2};
  auto sender = queues;  // a copy shares them
  CHECK(drain(queues).empty());
  auto tokens = std::array{token{5}, token{6}};
  sender.emit({.kind = event_kind::stored, .block = block_id{3}, .hash = 7, .tokens = tokens});
  tokens = {8, 9};
  sender.emit({.kind = event_kind::stored, .block = block_id{4}, .origin = block_id{3}, .tokens = tokens});
  tokens = {0, 0};
  const auto first = drain(queues);
  REQUIRE(first.size() == 2);
  CHECK(first[0].event.number == 1);
  CHECK(first[0].event.hash == 7);
  CHECK(first[0].tokens == std::vector<token>{5, 6});
  CHECK(first[1].event.number == 2);
  CHECK(first[1].event.origin == block_id{3});
  CHECK(first[1].tokens == std::vector<token>{8, 9});

  sender.emit({.kind = event_kind::evicted, .block = block_id{3}, .hash = 7});
  const auto second = drain(queues);
  REQUIRE(second.size() == 1);
  CHECK(second[0].event.kind == event_kind::evicted);
  CHECK(second[0].event.number == 3);
  CHECK(second[0].tokens.empty());
}

TEST_CASE("events that find no room are dropped and counted, the older ones stay", "[events]") {
  auto queues = event_queues{1, {.capacity = 4}};
  for (auto i = 0; i < 10; ++i) {
    queues.emit({.kind = event_kind::stored, .block = block_id{i}});
  }
  const auto drained = drain(queues);
  REQUIRE(drained.size() == 4);
  CHECK(queues.num_dropped() == 6);
  for (auto i = 0; i < 4; ++i) {
    CHECK(drained[static_cast<std::size_t>(i)].event.block == block_id{i});
  }
  queues.emit({});
  const auto next = drain(queues);
  REQUIRE(next.size() == 1);
  CHECK(next.back().event.number == 11);
  CHECK(queues.num_dropped() == 6);
}

TEST_CASE("an event with more keys than an entry has room for is dropped", "[events]") {
  auto queues = event_queues{1, {.max_keys = 2}};
  auto keys = std::array{prefix_key{.position = 1}, prefix_key{.position = 2}, prefix_key{.position = 3}};
  queues.emit({.kind = event_kind::stored, .keys = keys});
  queues.emit({.kind = event_kind::stored, .keys = std::span{keys}.first(2)});
  keys = {};
  CHECK(queues.num_dropped() == 1);
  auto positions = std::vector<std::int64_t>{};
  queues.drain([&](const cache_event& event) {
    for (const auto& key : event.keys) {
      positions.push_back(key.position);
    }
  });
  CHECK(positions == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("a thread beyond the last queue has its events counted as dropped", "[events]") {
  auto queues = event_queues{1, {.capacity = 4, .num_producers = 1}};
  static_cast<void>(this_thread_index{}.current());
  std::jthread{[&] { queues.emit({}); }}.join();
  CHECK(drain(queues).size() + static_cast<std::size_t>(queues.num_dropped()) == 1);
}

TEST_CASE("an event whose visit throws is visited again", "[events]") {
  auto queues = event_queues{1};
  queues.emit({.block = block_id{1}});
  queues.emit({.block = block_id{2}});
  CHECK_THROWS_AS(queues.drain([](const cache_event& event) {
    if (event.block == block_id{2}) {
      throw std::runtime_error("no");
    }
  }),
                  std::runtime_error);
  const auto rest = drain(queues);
  REQUIRE(rest.size() == 1);
  CHECK(rest.front().event.block == block_id{2});
}

TEST_CASE("event queues need a block size, and room for at least one event and thread", "[events]") {
  const auto refusal = [](std::int32_t block_size, const event_queue_sizes& sizes) {
    return test::thrown([&] { event_queues{block_size, sizes}; });
  };
  test::check_messages({
      {refusal(0, {}), test::invalid("block_size of event queues is 0, limit 1")},
      {refusal(16, {.capacity = 0}), test::invalid("event_queue_sizes.capacity is 0, limit 1")},
      {refusal(16, {.num_producers = -1}), test::invalid("event_queue_sizes.num_producers is -1, limit 1")},
      {refusal(16, {.max_keys = 0}), test::invalid("event_queue_sizes.max_keys is 0, limit 1")},
  });
}

TEST_CASE("with many producers and a slow consumer every event arrives once or is counted", "[events]") {
  constexpr auto num_producers = 4;
  constexpr auto per_producer = 20'000;
  auto queues = event_queues{4, {.capacity = 64}};
  auto running = std::atomic{num_producers};
  auto threads = std::vector<std::jthread>{};
  for (auto t = 0; t < num_producers; ++t) {
    threads.emplace_back([&, t] {
      for (auto i = 0; i < per_producer; ++i) {
        const auto tokens = std::vector<token>(static_cast<std::size_t>(i % 5), i);
        queues.emit({.kind = event_kind::stored,
                     .block = block_id{t},
                     .hash = static_cast<std::uint64_t>(i),
                     .tokens = tokens});
      }
      --running;
    });
  }
  auto drained = std::vector<cache_event>{};
  auto torn = 0;
  const auto visit = [&](const cache_event& event) {
    const auto sent = static_cast<token>(event.hash);
    torn +=
        event.tokens.size() != event.hash % 5 || std::ranges::any_of(event.tokens, [&](token t) { return t != sent; });
    drained.push_back(event);
  };
  while (running > 0) {
    queues.drain(visit);
    std::this_thread::yield();
  }
  queues.drain(visit);
  CHECK(torn == 0);
  CHECK(static_cast<std::int64_t>(drained.size()) + queues.num_dropped() == num_producers * per_producer);

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
