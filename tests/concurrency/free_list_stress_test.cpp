#include "../support/full_numbers.hpp"
#include "../support/on_threads.hpp"

#include <pagedkv/policy/locking/parts/contention.hpp>
#include <pagedkv/pool/free_list.hpp>
#include <pagedkv/pool/lock_free_free_list.hpp>
#include <pagedkv/pool/sharded_free_list.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

namespace {

using namespace pagedkv;
using test::on_threads;
using testing::scaled;

constexpr auto num_threads = 16;

/// A free list, one flag per id that says whether a thread has it, and the owner's mark in its plain contents.
template <free_list List>
class watched {
 public:
  template <class... NumCaches>
  explicit watched(std::int32_t num_blocks, NumCaches... num_caches)
      : list_(num_blocks, num_caches...),
        held_(static_cast<std::size_t>(num_blocks)),
        marks_(static_cast<std::size_t>(num_blocks)) {}

  block_id pop() {
    const auto block = list_.pop();
    if (block != no_block) {
      errors_ += held_[to_index(block)].exchange(true, std::memory_order_relaxed);
      ++marks_[to_index(block)];
    }
    return block;
  }

  void push(block_id block) {
    ++marks_[to_index(block)];
    errors_ += !held_[to_index(block)].exchange(false, std::memory_order_relaxed);
    list_.push(block);
  }

  [[nodiscard]] std::int32_t size() const { return list_.size(); }
  [[nodiscard]] int errors() const { return errors_; }

  /// Pops everything; returns how many there were.
  [[nodiscard]] std::int32_t drain() {
    auto count = std::int32_t{0};
    while (pop() != no_block) {
      ++count;
    }
    return count;
  }

 private:
  List list_;
  std::vector<std::atomic<bool>> held_;
  std::vector<std::uint32_t> marks_;  // plain: ThreadSanitizer checks that pushes and pops order their owners
  std::atomic<int> errors_{0};
};

/// Pops and pushes at random, holding at most `most` ids, and pushes all at the end.
template <free_list List>
void churn(watched<List>& list, std::uint64_t seed, std::int64_t operations, std::size_t most) {
  auto random = std::minstd_rand{static_cast<std::uint32_t>(seed)};
  auto held = std::vector<block_id>{};
  held.reserve(most);
  auto filling = true;
  for (auto i = std::int64_t{0}; i < operations; ++i) {
    filling = random() % 64 == 0 ? !filling : filling;
    const auto more = filling ? random() % 4 != 0 : random() % 4 == 0;
    const auto block = more && held.size() < most ? list.pop() : no_block;
    if (block != no_block) {
      held.push_back(block);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      list.push(held.back());
      held.pop_back();
    }
  }
  for (const auto block : held) {
    list.push(block);
  }
}

// Case 2 of the concurrency cases.
TEMPLATE_TEST_CASE("a million ids and many threads: none twice, all free at the end", "[free_list][stress][random]",
                   lock_free_free_list<>, free_list_for<sharded_mutex>) {
  const auto seed = GENERATE(take(1, random(std::uint64_t{1}, std::uint64_t{1} << 40)));
  CAPTURE(seed);
  const auto num_blocks = std::int32_t{1} << 20;
  const auto operations = scaled<std::int64_t>(200'000, 30'000'000);
  auto list = watched<TestType>{num_blocks};
  on_threads(num_threads, [&](int t) { churn(list, seed + static_cast<std::uint64_t>(t), operations, 100'000); });
  CHECK(list.errors() == 0);
  CHECK(list.size() == num_blocks);
  CHECK(list.drain() == num_blocks);
  CHECK(list.errors() == 0);
}

TEST_CASE("few ids and many threads: every pop steals", "[free_list][stress][random]") {
  const auto seed = GENERATE(take(1, random(std::uint64_t{1}, std::uint64_t{1} << 40)));
  const auto num_blocks = GENERATE(1, 7, 200);
  const auto num_caches = GENERATE(0U, 3U, 16U);
  CAPTURE(seed, num_blocks, num_caches);
  const auto operations = scaled<std::int64_t>(10'000, 3'000'000);
  auto list = watched<lock_free_free_list<>>{num_blocks, num_caches};
  on_threads(num_threads, [&](int t) { churn(list, seed + static_cast<std::uint64_t>(t), operations, 30); });
  CHECK(list.errors() == 0);
  CHECK(list.size() == num_blocks);
  CHECK(list.drain() == num_blocks);
}

// Case 5, and beyond 65,535, the limit of Boost.Lockfree.
TEST_CASE("many ids work", "[free_list][stress]") {
  const auto num_blocks = GENERATE(70'000, 4'000'000);
  auto list = watched<lock_free_free_list<>>{num_blocks};
  auto popped = std::atomic<std::int32_t>{0};
  on_threads(4, [&](int) { popped += list.drain(); });
  CHECK(popped == num_blocks);
  CHECK(list.size() == 0);
  CHECK(list.errors() == 0);
}

// Case 6: together the threads need more ids than exist.
TEMPLATE_TEST_CASE("threads that need more ids than exist get exactly those that exist", "[free_list][stress]",
                   lock_free_free_list<>, free_list_for<sharded_mutex>) {
  const auto rounds = scaled(50, 5'000);
  const auto num_blocks = GENERATE(16, 1'000, 10'000);
  auto list = watched<TestType>{num_blocks};
  for (auto round = 0; round < rounds; ++round) {
    const auto wanted = static_cast<std::size_t>(num_blocks / num_threads + 1);
    auto granted = std::vector<std::vector<block_id>>(num_threads);
    on_threads(num_threads, [&](int t) {
      auto& mine = granted[static_cast<std::size_t>(t)];
      for (auto block = no_block; mine.size() < wanted && (block = list.pop()) != no_block;) {
        mine.push_back(block);
      }
    });
    auto total = std::size_t{0};
    for (const auto& mine : granted) {
      total += mine.size();
    }
    REQUIRE(total == static_cast<std::size_t>(num_blocks));
    on_threads(num_threads, [&](int t) {  // other threads than those that popped them
      for (const auto block : granted[static_cast<std::size_t>(num_threads - 1 - t)]) {
        list.push(block);
      }
    });
    REQUIRE(list.size() == num_blocks);
  }
  CHECK(list.errors() == 0);
}

TEST_CASE("ids cached by a thread that ended are not lost", "[free_list][stress]") {
  constexpr auto num_blocks = 1'000;
  auto list = watched<lock_free_free_list<>>{num_blocks};
  for (auto i = 0; i < 200; ++i) {
    on_threads(3, [&](int) {
      auto held = std::vector<block_id>{};
      for (auto block = no_block; held.size() < 300 && (block = list.pop()) != no_block;) {
        held.push_back(block);
      }
      for (const auto block : held) {
        list.push(block);
      }
    });
  }
  CHECK(list.errors() == 0);
  CHECK(list.drain() == num_blocks);
}

TEST_CASE("ids taken from another thread's cache are counted as steals", "[free_list]") {
  constexpr auto num_blocks = 10;
  auto list = lock_free_free_list<std::atomic, this_thread_index, 63, count_contention>{num_blocks};
  for (auto i = 0; i < num_blocks; ++i) {
    list.push(list.pop());
  }
  for (auto i = 0; i < num_blocks; ++i) {
    CHECK(list.pop() != no_block);
  }
  for (auto i = 0; i < num_blocks; ++i) {  // the only free one each time
    list.push(block_id{i});
    CHECK(list.pop() == block_id{i});
  }
  for (auto i = 0; i < num_blocks; ++i) {
    list.push(block_id{i});
  }
  CHECK(list.contention() == contention_counts{});
  std::jthread{[&] {
    while (list.pop() != no_block) {
    }
  }}.join();
  CHECK(list.contention() == contention_counts{.steals = num_blocks});
}

}  // namespace
