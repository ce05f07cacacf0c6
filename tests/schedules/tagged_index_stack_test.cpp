#include "../support/mutants.hpp"
#include "../support/scheduled.hpp"

#include <pagedkv/pool/tagged_index_stack.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

constexpr auto num_indices = std::uint32_t{3};

/// A stack that starts with indices 0, 1, 2 from the top. The owner of an index may write its contents.
template <template <class> class Atomic>
struct checked_stack {
  using stack_type = tagged_index_stack<Atomic>;

  explicit checked_stack(execution& run_by) : e(run_by) {
    for (auto index = num_indices; index-- > 0;) {
      stack.push(next, index);
    }
  }

  std::uint32_t pop() {
    const auto index = stack.pop(next);
    if (index != stack_type::none) {
      e.expect(!held[index], "handed out twice");
      held[index] = true;
      contents[index].write(1);
    }
    return index;
  }

  void push(std::uint32_t index) {
    if (index != stack_type::none) {
      contents[index].write(2);
      held[index] = false;
      stack.push(next, index);
    }
  }

  void run() {
    e.run();
    for (auto pops = 0U; pops <= num_indices && pop() != stack_type::none; ++pops) {
    }
    for (const auto taken : held) {
      e.expect(taken, "an index is lost");
    }
  }

  execution& e;
  stack_type stack;
  typename stack_type::links next = std::make_unique<Atomic<std::uint32_t>[]>(num_indices);
  std::array<bool, num_indices> held{};
  std::array<scheduled_data<int>, num_indices> contents{};
};

/// One thread pops; the other takes two and pushes them so that the first is on top again, over a different one.
template <template <class> class Atomic>
void recycle(execution& e) {
  auto list = checked_stack<Atomic>{e};
  e.spawn([&] { list.pop(); });
  e.spawn([&] {
    const auto top = list.pop();
    list.pop();
    list.push(top);
  });
  list.run();
}

template <template <class> class Atomic>
void exchange(execution& e) {
  auto list = checked_stack<Atomic>{e};
  for (auto thread = 0; thread < 2; ++thread) {
    e.spawn([&] {
      const auto first = list.pop();
      const auto second = list.pop();
      list.push(first);
      list.push(second);
    });
  }
  list.run();
}

void check_every_schedule(const scenario& body, const bounds& limits) {
  const auto found = explorer{limits}.exhaustive(body);
  INFO(found.failure << ", schedule " << found.schedule);
  CHECK(found.failure.empty());
  CHECK(found.complete);
}

TEST_CASE("a tagged index stack hands out each index once under every schedule", "[tagged_index_stack][scheduler]") {
  check_every_schedule(recycle<scheduled>, {.preemptions = 4});
  check_every_schedule(exchange<scheduled>, {.preemptions = 3});
  check_every_schedule(recycle<scheduled>, {.preemptions = 2, .surprises = 2});
  check_every_schedule(exchange<scheduled>, {.preemptions = 2, .surprises = 1});
}

TEST_CASE("a thread stopped anywhere in a tagged index stack stops no other", "[tagged_index_stack][scheduler]") {
  for (const auto thread : {std::size_t{1}, std::size_t{2}}) {
    const auto found = explorer{}.stopped_anywhere(exchange<scheduled>, thread, 1);
    CHECK(found.failure.empty());
    CHECK(found.complete);
  }
}

TEST_CASE("bugs planted in a tagged index stack are caught", "[tagged_index_stack][scheduler]") {
  CHECK_FALSE(explorer{}.exhaustive(recycle<untagged>).failure.empty());
  CHECK_FALSE(explorer{}.exhaustive(recycle<load_then_store>).failure.empty());
  CHECK_FALSE(explorer{}.exhaustive(exchange<unreleased>).failure.empty());
}

/// Case 3 of the concurrency cases, stopped at the swap alone: like `recycle`, but between the first thread's read of
/// the top and its swap, the other makes a multiple of 65,536 pushes.
template <template <class> class Atomic>
void sleep_through_many_pushes(execution& e) {
  auto list = checked_stack<Atomic>{e};
  e.spawn([&] { list.pop(); });
  e.spawn([&] {
    const auto top = list.pop();
    list.pop();
    list.push(top);
    for (auto pushes = 1; pushes < 65'536; ++pushes) {
      list.push(list.pop());
    }
  });
  list.run();
}

TEST_CASE("a pop that slept while the stack came round 65,536 times fails its swap",
          "[tagged_index_stack][scheduler]") {
  auto explored = explorer{{.max_steps = 1'000'000}};
  constexpr auto before_the_swap = stop{.thread = 1, .steps = 2};
  CHECK(explored.stopped(sleep_through_many_pushes<scheduled>, before_the_swap).failure.empty());
  CHECK_FALSE(explored.stopped(sleep_through_many_pushes<tagged_16>, before_the_swap).failure.empty());
}

/// Tags of 16 bits, as in Boost.Lockfree.
template <class T>
class short_tag : public testing::scheduled<T> {
  using base = testing::scheduled<T>;

 public:
  using base::base;

  bool compare_exchange_weak(T& expected, T desired, std::memory_order success, std::memory_order failure) noexcept {
    return base::compare_exchange_weak(expected, sizeof(T) == 8 ? static_cast<T>(desired & 0xffff'ffff'ffff) : desired,
                                       success, failure);
  }
};

/// One thread pops and is stopped; the other takes the two uppermost and gives the first back, 65,536 times.
template <template <class> class Atomic>
void stalled_pop(testing::execution& e) {
  using stack = tagged_index_stack<Atomic>;
  auto links = std::make_unique<Atomic<std::uint32_t>[]>(3);
  auto top = stack{};
  for (auto index = std::uint32_t{3}; index-- > 0;) {
    top.push(links, index);
  }
  auto popped = std::vector<std::uint32_t>{};
  const auto pop = [&] {
    if (const auto index = top.pop(links); index != stack::none) {
      popped.push_back(index);
    }
  };
  e.spawn(pop);
  e.spawn([&] {
    const auto first = top.pop(links);
    const auto second = top.pop(links);
    if (first == stack::none || second == stack::none) {
      return e.fail("an id is lost");
    }
    popped.push_back(second);
    for (auto cycle = 0; cycle < 65'536; ++cycle) {
      top.push(links, first);
      if (cycle < 65'535 && top.pop(links) != first) {
        return;
      }
    }
  });
  e.run();
  for (auto i = 0; i < 3; ++i) {
    pop();
  }
  std::ranges::sort(popped);
  e.expect(popped == std::vector<std::uint32_t>{0, 1, 2}, "an id is lost, or handed out twice");
}

TEST_CASE("case 3: the swap of a pop that slept through 65,536 cycles fails", "[cases][scheduler]") {
  const auto limits = testing::bounds{.preemptions = 0, .max_steps = 2'000'000};
  const auto found = testing::explorer{limits}.stopped_anywhere(stalled_pop<testing::scheduled>, 1, 1);
  CAPTURE(found.failure);
  CHECK(found.failure.empty());
  CHECK(found.complete);
  CHECK_FALSE(testing::explorer{limits}.stopped_anywhere(stalled_pop<short_tag>, 1, 1).failure.empty());
}

}  // namespace
