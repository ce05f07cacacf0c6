#include <pagedkv/policy/locking/parts/thread_index.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

using namespace pagedkv;

TEST_CASE("indices run out and come back", "[thread_index]") {
  auto registry = index_registry<>{};
  for (auto i = std::uint32_t{0}; i < registry.capacity; ++i) {
    CHECK(registry.claim() == i);
  }
  CHECK(registry.claim() == registry.none);
  registry.release(700);
  registry.release(70);
  CHECK(registry.claim() == 70);
  CHECK(registry.claim() == 700);
  CHECK(registry.claim() == registry.none);
  CHECK(registry.limit() == registry.capacity);
}

TEST_CASE("a thread keeps its index, and the next one takes it over", "[thread_index]") {
  const auto own = this_thread_index{}.current();
  auto next = std::uint32_t{};
  auto again = std::uint32_t{};
  for (auto i = 0; i < 100; ++i) {
    std::jthread{[&] {
      next = this_thread_index{}.current();
      again = this_thread_index{}.current();
    }}.join();
    CHECK(again == next);
    CHECK(next != own);
    CHECK(next < 2 + own);
  }
  CHECK(this_thread_index{}.current() == own);
}

TEST_CASE("threads that live together have different indices below the limit", "[thread_index]") {
  constexpr auto count = std::size_t{50};
  auto indices = std::vector<std::uint32_t>(count);
  auto arrived = std::atomic<std::size_t>{0};
  auto threads = std::vector<std::jthread>{};
  for (auto& index : indices) {
    threads.emplace_back([&] {
      index = this_thread_index{}.current();
      ++arrived;
      while (arrived < count) {
        std::this_thread::yield();
      }
    });
  }
  threads.clear();
  std::sort(indices.begin(), indices.end());
  CHECK(std::adjacent_find(indices.begin(), indices.end()) == indices.end());
  CHECK(indices.back() < this_thread_index{}.limit());
}

}  // namespace
