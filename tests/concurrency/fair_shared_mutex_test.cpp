#include "../support/full_numbers.hpp"

#include <pagedkv/policy/locking/parts/mutexes.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

namespace {

using pagedkv::fair_shared_mutex;

// Arithmetic of about 20 µs, the time for which a reader of the cache holds the lock.
std::uint64_t work() {
  auto state = std::uint64_t{88172645463325252};
  for (auto i = 0; i < 12000; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
  }
  return state;
}

TEST_CASE("readers and writers exclude each other", "[fair_shared_mutex]") {
  constexpr auto threads = 4;
  constexpr auto rounds = 5000;
  auto mutex = fair_shared_mutex{};
  auto left = std::uint64_t{0};
  auto right = std::uint64_t{0};
  auto torn_reads = std::atomic{0};
  auto workers = std::vector<std::jthread>{};
  for (auto t = 0; t < threads; ++t) {
    workers.emplace_back([&] {
      for (auto i = 0; i < rounds; ++i) {
        const auto writer = std::lock_guard{mutex};
        ++left;
        ++right;
      }
    });
    workers.emplace_back([&] {
      for (auto i = 0; i < rounds; ++i) {
        const auto reader = std::shared_lock{mutex};
        torn_reads += left != right;
      }
    });
  }
  workers.clear();
  CHECK(left == threads * rounds);
  CHECK(right == threads * rounds);
  CHECK(torn_reads == 0);
}

TEST_CASE("readers hold it together", "[fair_shared_mutex]") {
  auto mutex = fair_shared_mutex{};
  auto inside = std::atomic{0};
  auto enter = [&] {
    const auto reader = std::shared_lock{mutex};
    ++inside;
    while (inside < 2) {
      std::this_thread::yield();
    }
  };
  auto first = std::jthread{enter};
  auto second = std::jthread{enter};
  first.join();
  second.join();
  CHECK(inside == 2);
}

// Case 7 of the concurrency cases, in counts: once the door is closed, a writer waits for the readers already inside,
// but for no newcomer. tests/schedules/scheduler_test.cpp checks how soon the door is closed.
TEST_CASE("no reader passes a writer that has closed the door", "[fair_shared_mutex]") {
  constexpr auto num_readers = 8;
  const auto rounds = pagedkv::testing::scaled(20, 1'000);
  for (auto round = 0; round < rounds; ++round) {
    auto mutex = pagedkv::basic_fair_shared_mutex<std::atomic, pagedkv::count_contention>{};
    auto door_closed = std::atomic{false};
    auto writer_done = std::atomic{false};
    auto passed = std::array<std::atomic<int>, num_readers>{};
    auto sum = std::atomic<std::uint64_t>{0};

    mutex.lock_shared();
    auto readers = std::vector<std::jthread>{};
    for (auto& count : passed) {
      readers.emplace_back([&] {
        while (!writer_done) {
          const auto reader = std::shared_lock{mutex};
          count += door_closed && !writer_done;
          sum += work();
        }
      });
    }
    auto writer = std::jthread{[&] {
      mutex.lock();
      writer_done = true;
      mutex.unlock();
    }};
    while (mutex.contention().waits < 2) {  // the writer and, since the door is closed, a reader
      std::this_thread::yield();
    }
    door_closed = true;
    mutex.unlock_shared();

    readers.clear();
    writer.join();
    for (const auto& count : passed) {
      CHECK(count <= 1);  // a reader already inside may read the flag late
    }
  }
}

TEST_CASE("neither kind starves while the other never pauses", "[fair_shared_mutex]") {
  constexpr auto grants = 20;
  auto mutex = fair_shared_mutex{};
  auto done = std::atomic{0};
  auto sum = std::atomic<std::uint64_t>{0};

  auto crowd = std::vector<std::jthread>{};
  for (auto t = 0; t < 4; ++t) {
    crowd.emplace_back([&] {
      while (done < 2) {
        const auto reader = std::shared_lock{mutex};
        sum += work();
      }
    });
    crowd.emplace_back([&] {
      while (done < 2) {
        const auto writer = std::lock_guard{mutex};
        sum += work();
      }
    });
  }
  auto reader = std::jthread{[&] {
    for (auto i = 0; i < grants; ++i) {
      const auto lock = std::shared_lock{mutex};
    }
    ++done;
  }};
  auto writer = std::jthread{[&] {
    for (auto i = 0; i < grants; ++i) {
      const auto lock = std::lock_guard{mutex};
    }
    ++done;
  }};
  crowd.clear();
  CHECK(done == 2);
}

}  // namespace
