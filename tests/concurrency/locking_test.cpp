#include "../support/asserts.hpp"

#include <pagedkv/policy/locking/all.hpp>
#include <pagedkv/policy/locking/parts/contention.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/policy/locking/parts/mutexes.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

using namespace pagedkv;
using testing::asserts;

// Every policy, and one with a mutex that is not the library's.
using policies = decltype(all_lockings{} + policy_list<basic_rw_lock<std::shared_mutex>>{});

TEMPLATE_LIST_TEST_CASE("a locking policy's atomic behaves like std::atomic on one thread", "[locking]", policies) {
  using atomic = typename TestType::template atomic<std::uint32_t>;
  constexpr auto order = std::memory_order_seq_cst;
  auto word = atomic{};
  CHECK(word.load(order) == 0);

  word.store(6, order);
  CHECK(word.exchange(12, order) == 6);
  CHECK(word.fetch_add(3, order) == 12);
  CHECK(word.fetch_sub(1, order) == 15);
  CHECK(word.fetch_and(0b0110, order) == 14);
  CHECK(word.fetch_or(0b1001, order) == 6);
  CHECK(word.load(order) == 15);

  word.store(0, order);
  CHECK(word.fetch_sub(1, order) == 0);
  CHECK(word.load(order) == 0xffff'ffffU);

  auto expected = std::uint32_t{7};
  CHECK_FALSE(word.compare_exchange_strong(expected, 8, order, std::memory_order_relaxed));
  CHECK(expected == 0xffff'ffffU);
  CHECK(word.compare_exchange_strong(expected, 8, order, std::memory_order_relaxed));
  expected = 8;
  while (!word.compare_exchange_weak(expected, 9, order, std::memory_order_relaxed)) {
    CHECK(expected == 8);
  }
  CHECK(word.load(order) == 9);
}

TEMPLATE_LIST_TEST_CASE("a locking policy's mutexes fit the standard's guards", "[locking]", policies) {
  auto cache = typename TestType::cache_mutex{};
  auto sequence = typename TestType::sequence_mutex{};
  {
    const auto writer = std::lock_guard{cache};
    const auto owner = std::unique_lock{sequence, std::try_to_lock};
    CHECK(owner.owns_lock());
  }
  {
    const auto reader = std::shared_lock{cache};
    CHECK(reader.owns_lock());
  }
  const auto again = std::lock_guard{cache};
  CHECK_FALSE(TestType::name.empty());
}

#ifndef NDEBUG

TEST_CASE("a debug build asserts that mutexes are taken in their order", "[locking]") {
  auto sequence = ordered_mutex<lock_rank::sequence>{};
  auto nodes = ordered_mutex<lock_rank::group_nodes>{};
  auto eviction = ordered_mutex<lock_rank::eviction_order>{};
  auto free_list = ordered_mutex<lock_rank::free_list_shard>{};
  const auto lock_both = [](auto& first, auto& second) {
    const auto outer = exclusive_guard{first};
    const auto inner = exclusive_guard{second};
  };
  CHECK_FALSE(asserts([&] { lock_both(sequence, free_list); }));
  CHECK_FALSE(asserts([&] { lock_both(sequence, nodes); }));
  CHECK_FALSE(asserts([&] { lock_both(nodes, eviction); }));
  CHECK_FALSE(asserts([&] { lock_both(eviction, free_list); }));
  CHECK(asserts([&] { lock_both(nodes, sequence); }));
  CHECK(asserts([&] { lock_both(free_list, eviction); }));
  CHECK(asserts([&] { lock_both(eviction, sequence); }));
  auto another = ordered_mutex<lock_rank::free_list_shard>{};
  CHECK(asserts([&] { lock_both(free_list, another); }));
}

#endif

TEST_CASE("under sharded_mutex one thread at a time has a sequence, and waits are counted", "[locking]") {
  auto mutex = basic_sharded_mutex<2, std::mutex, count_contention>::sequence_mutex{};
  auto total = std::uint64_t{0};
  mutex.lock();
  auto other = std::jthread{[&] {
    const auto guard = exclusive_guard{mutex};
    total = 2 * total + 1;
  }};
  while (mutex.contention().waits == 0) {
    std::this_thread::yield();
  }
  total = 10;
  mutex.unlock();
  other.join();
  CHECK(total == 21);
  CHECK(mutex.contention() == contention_counts{.waits = 1});
}

TEST_CASE("under rw_lock waits are counted if the mutex does, and the policy passes them on", "[locking]") {
  using policy = basic_rw_lock<basic_fair_shared_mutex<std::atomic, count_contention>>;
  STATIC_CHECK(std::is_same_v<policy::contention, count_contention>);
  STATIC_CHECK(std::is_same_v<basic_rw_lock<std::shared_mutex>::contention, no_contention_metrics>);
  auto mutex = policy::cache_mutex{};
  mutex.lock();
  auto reader = std::jthread{[&] { const auto guard = shared_guard{mutex}; }};
  while (mutex.contention().waits == 0) {
    std::this_thread::yield();
  }
  mutex.unlock();
  reader.join();
  CHECK(mutex.contention() == contention_counts{.waits = 1});
}

TEST_CASE("a closed gate keeps all others out, an open one none", "[locking]") {
  constexpr auto rounds = 300;
  auto passage = gate<>{};
  auto alone = std::uint64_t{0};
  auto mismatches = std::atomic{0};
  auto passed = std::atomic{0};
  auto threads = std::vector<std::jthread>{};
  for (auto t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (auto i = 0; i < rounds; ++i) {
        const auto guard = shared_guard{passage};
        const auto before = alone;
        ++passed;
        mismatches += alone != before;
      }
    });
  }
  for (auto i = 0; i < rounds; ++i) {
    const auto guard = whole_guard{passage};
    const auto before = passed.load();
    ++alone;
    mismatches += passed != before;
  }
  threads.clear();
  CHECK(alone == rounds);
  CHECK(passed == 3 * rounds);
  CHECK(mismatches == 0);

  const auto first = exclusive_guard{passage};
  std::jthread{[&] { const auto second = exclusive_guard{passage}; }}.join();
}

template <class Mutex>
struct guarded {
  [[no_unique_address]] Mutex mutex;
  std::uint64_t value;
};

static_assert(sizeof(guarded<single_thread::cache_mutex>) == sizeof(std::uint64_t));
static_assert(sizeof(guarded<single_thread::sequence_mutex>) == sizeof(std::uint64_t));
static_assert(sizeof(guarded<rw_lock::sequence_mutex>) == sizeof(std::uint64_t));
static_assert(!std::is_copy_constructible_v<single_thread::atomic<int>>, "what compiles must compile with std::atomic");

}  // namespace
