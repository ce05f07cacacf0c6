#include "../support/check_schedules.hpp"
#include "../support/mutants.hpp"
#include "../support/scheduled.hpp"

#include <pagedkv/pool/lock_free_free_list.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <cstdint>
#include <memory>

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
      e.concerns_others();
      e.expect(!held[index], "handed out twice");
      held[index] = true;
      contents[index].write(1);
    }
    return index;
  }

  void push(std::uint32_t index) {
    if (index != stack_type::none) {
      e.concerns_others();
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

/// One thread pops; the other takes two and pushes the first, which is on top again, over a different one. It takes and
/// pushes that until it has pushed `num_pushes` times.
template <template <class> class Atomic, int num_pushes = 1>
void recycle(execution& e) {
  auto list = checked_stack<Atomic>{e};
  e.spawn([&] { list.pop(); });
  e.spawn([&] {
    const auto top = list.pop();
    list.pop();
    list.push(top);
    for (auto pushes = 1; pushes < num_pushes; ++pushes) {
      list.push(list.pop());
    }
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
  check_complete(explorer{limits}.exhaustive(body));
}

TEST_CASE("a tagged index stack hands out each index once under every schedule", "[tagged_index_stack][scheduler]") {
  check_every_schedule(recycle<scheduled>, {.preemptions = 4});
  check_every_schedule(exchange<scheduled>, {.preemptions = 3});
  check_every_schedule(recycle<scheduled>, {.preemptions = 2, .surprises = 2});
  check_every_schedule(exchange<scheduled>, {.preemptions = 2, .surprises = 1});
}

TEST_CASE("a thread stopped anywhere in a tagged index stack stops no other", "[tagged_index_stack][scheduler]") {
  for (const auto thread : {std::size_t{1}, std::size_t{2}}) {
    check_complete(explorer{}.stopped_anywhere(exchange<scheduled>, thread, 1));
  }
}

TEST_CASE("bugs planted in a tagged index stack are caught", "[tagged_index_stack][scheduler]") {
  CHECK_FALSE(explorer{}.exhaustive(recycle<untagged>).failure.empty());
  CHECK_FALSE(explorer{}.exhaustive(recycle<load_then_store>).failure.empty());
  CHECK_FALSE(explorer{}.exhaustive(exchange<unreleased>).failure.empty());
}

TEST_CASE("case 3: the swap of a pop that slept through 65,536 pushes fails", "[cases][scheduler]") {
  auto explored = explorer{{.preemptions = 0, .max_steps = 2'000'000}};
  check_complete(explored.stopped_anywhere(recycle<scheduled, 65'536>, 1, 1));
  CHECK_FALSE(explored.stopped_anywhere(recycle<tagged_16, 65'536>, 1, 1).failure.empty());
}

}  // namespace
