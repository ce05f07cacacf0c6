#include "../support/check_schedules.hpp"
#include "../support/mutants.hpp"
#include "../support/scheduled.hpp"

#include <pagedkv/events/event_queues.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

constexpr auto every_schedule = bounds{.preemptions = 3, .surprises = 1};

template <template <class> class Atomic>
using scheduled_queues = basic_event_queues<prefix_event_kinds, Atomic, scheduled_thread_index>;

constexpr auto stored = cache_event{.kind = event_kind::stored, .hash = 1};
constexpr auto evicted = cache_event{.kind = event_kind::evicted, .hash = 1};

template <class Queues>
std::vector<event_kind> drained(Queues& queues) {
  auto kinds = std::vector<event_kind>{};
  queues.drain([&](const cache_event& event) { kinds.push_back(event.kind); });
  return kinds;
}

/// One thread stores a block, which another one then evicts, while a third one drains twice.
template <template <class> class Atomic>
void store_and_evict(execution& e) {
  auto queues = scheduled_queues<Atomic>{1, {.capacity = 1, .num_producers = 3, .max_keys = 1}};
  auto is_evictable = scheduled<bool>{false};
  auto was_evicted = false;
  e.spawn([&] {
    queues.emit(stored);
    is_evictable.store(true, std::memory_order_release);
  });
  e.spawn([&] {
    was_evicted = is_evictable.load(std::memory_order_acquire);
    if (was_evicted) {
      queues.emit(evicted);
    }
  });
  auto kinds = std::vector<event_kind>{};
  const auto drain = [&] {
    std::ranges::copy(drained(queues), std::back_inserter(kinds));
    e.expect(kinds.empty() || kinds.front() == event_kind::stored, "a block is evicted before it is stored");
  };
  e.spawn([&] {
    drain();
    drain();
  });
  e.run();
  drain();
  e.expect(kinds.size() == (was_evicted ? 2U : 1U), "an event is missing");
}

/// One thread stores a block and evicts it, which finds its queue full, while another drains and forgets what it knows
/// where an event is missing.
template <template <class> class Atomic>
void drop(execution& e) {
  auto queues = scheduled_queues<Atomic>{1, {.capacity = 1, .num_producers = 2, .max_keys = 1}};
  e.spawn([&] {
    queues.emit(stored);
    queues.emit(evicted);
  });
  auto is_known = false;
  auto num_dropped = std::int64_t{0};
  const auto follow = [&] {
    const auto dropped = queues.num_dropped();
    for (const auto kind : drained(queues)) {
      is_known = kind == event_kind::stored;
    }
    if (std::exchange(num_dropped, dropped) != dropped) {
      is_known = false;
    }
  };
  e.spawn(follow);
  e.run();
  follow();
  e.expect(!is_known, "a block is known that is gone");
}

TEST_CASE("an event that happened before another one is drained first under every schedule", "[events][scheduler]") {
  for (const auto body : {store_and_evict<scheduled>, drop<scheduled>}) {
    check_complete(explorer{every_schedule}.exhaustive(body));
  }
}

TEST_CASE("the schedules of events find numbers and losses that release nothing", "[events][scheduler]") {
  CHECK_FALSE(explorer{every_schedule}.exhaustive(store_and_evict<unreleased_addition>).failure.empty());
  CHECK_FALSE(explorer{every_schedule}.exhaustive(drop<unreleased_addition>).failure.empty());
}

}  // namespace
