#include <pagedkv/policy/locking/fair_shared_mutex.hpp>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

namespace {

using pagedkv::fair_shared_mutex;

// Enough arithmetic for about 20 µs, the time a reader of the cache holds the lock.
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

// Case 7 of the concurrency cases, and the same for readers. By how many either is passed: see scheduler_test.cpp.
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
