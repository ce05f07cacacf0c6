#include <pagedkv/host/thread_pool.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

namespace {

using pagedkv::host::thread_pool;
using pagedkv::host::usable_processors;

// As many threads as processors spin between runs; more sleep at once.
const auto sizes = std::vector{1, 2, usable_processors(), usable_processors() + 3};

TEST_CASE("a pool makes each call of a run once, before the run returns", "[thread_pool]") {
  for (const auto size : sizes) {
    auto pool = thread_pool(size);
    CHECK(pool.size() == size);
    for (auto n = 0; n < 40; ++n) {
      auto calls = std::vector<int>(static_cast<std::size_t>(n));
      pool.run(n, [&](int i) { ++calls[static_cast<std::size_t>(i)]; });
      CHECK(std::ranges::all_of(calls, [](int count) { return count == 1; }));
    }
  }
}

TEST_CASE("runs that follow each other at once keep their own calls", "[thread_pool]") {
  for (const auto size : sizes) {
    auto pool = thread_pool(size);
    for (auto run = 0; run < 2000; ++run) {
      // Its own memory, so that a call of an earlier run would be seen by AddressSanitizer.
      const auto sum = std::make_unique<std::atomic<int>>(0);
      pool.run(run % 5, [&](int i) { sum->fetch_add(i + run, std::memory_order_relaxed); });
      const auto n = run % 5;
      REQUIRE(sum->load() == n * (n - 1) / 2 + n * run);
    }
  }
}

TEST_CASE("a constant call runs on a pool, and on the workers that it lends", "[thread_pool]") {
  auto pool = thread_pool(2);
  auto sum = std::atomic<int>(0);
  const auto add = [&](int i) { sum.fetch_add(i, std::memory_order_relaxed); };
  pool.run(10, add);
  CHECK(sum == 45);
  pagedkv::host::workers(pool).run(10, add);
  CHECK(sum == 90);
  pagedkv::host::workers().run(10, add);
  CHECK(sum == 135);
}

TEST_CASE("a thread takes calls in their order, so that it reads memory forward", "[thread_pool]") {
  for (const auto size : sizes) {
    auto pool = thread_pool(size);
    auto last = std::vector<int>(static_cast<std::size_t>(size), -1);  // call of each thread
    auto threads = std::vector<std::thread::id>(last.size());
    auto mutex = std::mutex();
    auto is_forward = true;
    pool.run(100, [&](int i) {
      const auto lock = std::scoped_lock(mutex);
      auto own = std::ranges::find(threads, std::this_thread::get_id());
      own = own != threads.end() ? own : std::ranges::find(threads, std::thread::id());
      *own = std::this_thread::get_id();
      auto& before = last[static_cast<std::size_t>(own - threads.begin())];
      is_forward = is_forward && before < i;
      before = i;
    });
    CHECK(is_forward);
  }
}

TEST_CASE("what one run writes, the next one reads", "[thread_pool]") {
  auto pool = thread_pool(3);
  auto numbers = std::vector<int>(64);
  std::iota(numbers.begin(), numbers.end(), 0);
  for (auto run = 1; run <= 200; ++run) {
    auto next = numbers;
    pool.run(64, [&](int i) { next[static_cast<std::size_t>(i)] = numbers[static_cast<std::size_t>((i + 1) % 64)]; });
    numbers = next;
    REQUIRE(numbers.front() == run % 64);
  }
}

TEST_CASE("all calls of a run can be under way at once", "[thread_pool]") {
  constexpr auto size = 4;
  auto pool = thread_pool(size);
  for (auto run = 0; run < 20; ++run) {
    auto arrived = std::atomic<int>{0};
    pool.run(size, [&](int) {
      ++arrived;
      for (auto seen = arrived.load(); seen != size; seen = arrived.load()) {
        arrived.wait(seen);
      }
      arrived.notify_all();
    });
    CHECK(arrived == size);
  }
}

TEST_CASE("several threads run on one pool in turns", "[thread_pool]") {
  for (const auto size : sizes) {
    auto pool = thread_pool(size);
    auto under_way = std::array<std::atomic<int>, 3>{};  // calls of each caller
    auto mixed = std::atomic<bool>{false};
    auto callers = std::vector<std::jthread>{};
    for (auto& own : under_way) {
      callers.emplace_back([&] {
        for (auto run = 0; run < 200; ++run) {
          pool.run(3, [&](int) {
            ++own;
            for (auto& other : under_way) {
              mixed = mixed || (&other != &own && other != 0);
            }
            --own;
          });
        }
      });
    }
    callers.clear();
    CHECK_FALSE(mixed);
  }
}

TEST_CASE("a pool may end at any time after its last run", "[thread_pool]") {
  for (auto run = 0; run < 200; ++run) {
    auto calls = std::atomic<int>{0};
    {
      auto pool = thread_pool(run % 4 + 1);
      for (auto i = 0; i < run % 3; ++i) {
        pool.run(4, [&](int) { ++calls; });
      }
    }
    REQUIRE(calls == run % 3 * 4);
  }
}

TEST_CASE("a pool has as many threads as the processors that it may run on", "[thread_pool]") {
  CHECK(usable_processors() >= 1);
  CHECK(usable_processors() <= static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  CHECK(thread_pool().size() == usable_processors());
}

}  // namespace
