#include "tracked_cache.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <latch>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::test;

constexpr auto num_requests = std::size_t{24};

/// Several threads operate on the same requests at once. Assertions stay with the main thread.
template <class Cache>
class contest {
 public:
  contest(tracked_cache<Cache>& under_test, std::vector<request_id> ids)
      : under_test_(under_test), ids_(std::move(ids)), num_ended_(ids_.size()) {}

  /// One thread's attempts: every request once, in an order of its own.
  void attack(std::uint32_t seed) {
    auto random = std::mt19937{seed};
    auto order = std::vector<std::size_t>(ids_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::shuffle(order, random);
    start_.arrive_and_wait();
    for (const auto i : order) {
      num_ended_[i] += attempt(ids_[i], random() % 6);
    }
  }

  /// One thread's load: requests that come and, where that is needed, take the others' place.
  void submit_more(std::vector<std::vector<token>> prompts) {
    start_.arrive_and_wait();
    for (const auto& prompt : prompts) {
      const auto submitted = under_test_.tracker.submit(prompt, with_priority(60, true));
      num_preempted_ += std::ssize(submitted.preempted());
      if (submitted) {
        num_unexpected_ += !under_test_.tracker.finish(submitted->id);
      } else {
        num_unexpected_ += submitted.error().code != error_code::capacity_exhausted;
      }
    }
  }

  [[nodiscard]] int num_ended(std::size_t request) const { return num_ended_[request]; }
  [[nodiscard]] int num_unexpected() const { return num_unexpected_; }
  /// Preemptions that operations returned.
  [[nodiscard]] std::int64_t num_preempted() const { return num_preempted_; }
  [[nodiscard]] request_id id(std::size_t request) const { return ids_[request]; }

  static constexpr auto num_attackers = 3;

 private:
  /// Returns whether this attempt ended the request.
  [[nodiscard]] bool attempt(request_id id, std::uint_fast32_t choice) {
    auto& tracker = under_test_.tracker;
    auto done = result<void>{};
    switch (choice) {
      case 0: done = tracker.finish(id); break;
      case 1: done = tracker.cancel(id); break;
      case 2: done = tracker.fail(id, some_failure); break;
      case 3:
        done = tracker.preempt(id);
        num_preempted_ += done.has_value();
        note(done);
        return false;
      case 4: try_fork(id); return false;
      default: note(tracker.append(id, std::vector<token>(3, 1)).outcome()); return false;
    }
    note(done);
    return done.has_value();
  }

  void try_fork(request_id id) {
    auto& tracker = under_test_.tracker;
    const auto forked = tracker.fork(id);
    if (!forked) {
      if (forked.error().code != error_code::in_use) {  // another thread preempts it at this moment
        note(forked.error());
      }
      return;
    }
    const auto appended = tracker.append(forked->id, std::vector<token>(2, 1));
    note(appended.outcome());
    num_preempted_ += std::ssize(appended.preempted());
    num_unexpected_ += !tracker.finish(forked->id);  // running or preempted: no other thread knows it
  }

  void note(const result<void>& done) {
    using enum error_code;
    if (!done) {
      const auto code = done.error().code;
      num_unexpected_ +=
          code != already_ended && code != preempted && code != capacity_exhausted && code != sequence_busy &&
          code != invalid_argument;  // a fork of a request whose last tokens are not committed
    }
  }

  tracked_cache<Cache>& under_test_;
  std::vector<request_id> ids_;
  std::vector<std::atomic<int>> num_ended_;
  std::atomic<int> num_unexpected_{0};
  std::atomic<std::int64_t> num_preempted_{0};
  std::latch start_{num_attackers + 1};
};

TEMPLATE_LIST_TEST_CASE("a request's blocks are released once, whichever thread ends or preempts it first",
                        "[requests][random]", threaded_caches) {
  auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto under_test = tracked_cache<TestType>{64, {.max_ended = 1000}};
  auto num_preempted = std::int64_t{0};
  for (auto round = 0; round < 40; ++round) {
    auto ids = std::vector<request_id>{};
    for (std::size_t i = 0; i < num_requests; ++i) {
      ids.push_back(under_test.running(1 + round % 2));
    }
    auto prompts = std::vector<std::vector<token>>{};
    for (auto i = 0; i < 8; ++i) {
      prompts.push_back(under_test.fresh_tokens(20 * block_size));
    }
    auto held = contest<TestType>{under_test, ids};
    {
      auto threads = std::vector<std::jthread>{};
      for (auto i = 0; i < held.num_attackers; ++i) {
        threads.emplace_back([&held, mine = seed++] { held.attack(mine); });
      }
      threads.emplace_back([&] { held.submit_more(prompts); });
    }

    CHECK(held.num_unexpected() == 0);
    num_preempted += held.num_preempted();
    for (std::size_t i = 0; i < num_requests; ++i) {
      const auto state = under_test.state(held.id(i));
      const bool over = state != request_state::running && state != request_state::preempted;
      CHECK(held.num_ended(i) == over);
      CHECK(under_test.tracker.finish(held.id(i)).has_value() == !over);
    }
    CHECK(under_test.in_use() == 0);
    under_test.check_invariants();
  }
  const auto counted = under_test.tracker.statistics();
  CHECK(counted.running + counted.preempted == 0);
  CHECK(counted.finished + counted.cancelled + counted.failed == counted.submitted);
  CHECK(counted.kept_records <= 1000);
  CHECK(counted.preemptions == num_preempted);  // each was returned to one caller
}

TEMPLATE_LIST_TEST_CASE("of several threads that adopt a sequence, one gets it", "[requests]", threaded_caches) {
  auto under_test = tracked_cache<TestType>{64};
  for (auto round = 0; round < 40; ++round) {
    auto sequences = std::vector<sequence_id>{};
    for (std::size_t i = 0; i < num_requests; ++i) {
      sequences.push_back(under_test.cache.create_sequence(under_test.fresh_tokens(block_size))->id);
    }
    auto adopted = std::vector<std::atomic<int>>(sequences.size());
    auto num_unexpected = std::atomic<int>{0};
    const auto attack = [&] {
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        const auto id = under_test.tracker.adopt(sequences[i]);
        adopted[i] += id.has_value();
        const bool is_expected = id ? under_test.tracker.cancel(*id).has_value()
                                    : id.error().code == error_code::in_use ||
                                          id.error().code == error_code::sequence_busy ||
                                          id.error().code == error_code::unknown_sequence;
        num_unexpected += !is_expected;
      }
    };
    {
      auto threads = std::vector<std::jthread>{};
      for (auto i = 0; i < 3; ++i) {
        threads.emplace_back(attack);
      }
    }
    CHECK(num_unexpected == 0);
    CHECK(std::ranges::all_of(adopted, [](const auto& times) { return times == 1; }));
    CHECK(under_test.in_use() == 0);
    under_test.check_invariants();
  }
}

/// Records the events of requests, each start a while after it was reported.
struct slow_record {
  struct list {
    std::mutex mutex;
    std::vector<cache_event> seen;
  };

  static constexpr auto kinds = event_kinds{event_kind::started, event_kind::preempted, event_kind::ended};

  void emit(const cache_event& event) noexcept {
    if (event.kind == event_kind::started) {
      std::this_thread::sleep_for(std::chrono::microseconds{200});
    }
    const auto lock = std::lock_guard{to->mutex};
    to->seen.push_back(event);
  }

  list* to;
};

TEST_CASE("events of a request come in the order of its changes, whichever thread makes them", "[requests]") {
  using cache_type = kv_cache<rw_lock, slow_record>;
  auto record = slow_record::list{};
  auto cache = cache_type{{.block_size = block_size, .num_blocks = 4, .head_dim = 2}, slow_record{&record}};
  auto tracker = request_tracker{cache};
  const auto prompt = std::vector<token>(3 * block_size);  // two of them never have room
  auto num_preempted = std::atomic<std::int64_t>{0};
  {
    const auto begin_again = [&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        const auto high = tracker.submit(prompt, with_priority(90, true));
        num_preempted += std::ssize(high.preempted());
        if (high) {
          static_cast<void>(tracker.finish(high->id));
        }
        for (const auto id : high.preempted()) {
          static_cast<void>(tracker.resume(id, prompt));
        }
      }
    };
    const auto other = std::jthread{begin_again};
    for (auto i = 0; i < 1'000 && num_preempted < 100; ++i) {
      if (const auto low = tracker.submit(prompt, with_priority(10))) {
        static_cast<void>(tracker.preempt(low->id));
        static_cast<void>(tracker.resume(low->id, prompt));
        static_cast<void>(tracker.cancel(low->id));
      }
    }
  }
  auto sequences = std::map<request_id, sequence_id>{};  // of those that run
  auto ended = std::set<request_id>{};
  auto num_unexpected = 0;
  for (const auto& event : record.seen) {
    num_unexpected += ended.contains(event.request);
    if (event.kind == event_kind::started) {
      num_unexpected += !sequences.emplace(event.request, event.sequence).second;
    } else if (event.kind == event_kind::preempted) {
      num_unexpected += !sequences.contains(event.request) || sequences[event.request] != event.sequence;
      sequences.erase(event.request);
    } else {
      sequences.erase(event.request);
      ended.insert(event.request);
    }
  }
  CHECK(num_unexpected == 0);
  CHECK(sequences.empty());
}

}  // namespace
