#include "../support/printing.hpp"

#include <pagedkv/policy/locking/parts/unsynchronized.hpp>
#include <pagedkv/pool/block_retirement.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

using namespace pagedkv;

namespace {

using fence = step_fence<unsynchronized>;

}  // namespace

TEST_CASE("steps are numbered from 1 and a tag waits for all of them", "[step_fence]") {
  auto steps = fence{};
  CHECK_FALSE(steps.in_flight());
  CHECK(steps.tag() == 0);
  const auto first = steps.begin().value();
  const auto second = steps.begin().value();
  CHECK(first == step_id{1});
  CHECK(second == step_id{2});
  const auto tag = steps.tag();
  CHECK_FALSE(steps.passed(tag));
  REQUIRE(steps.retire(second));
  CHECK_FALSE(steps.passed(tag));
  CHECK(steps.in_flight());
  REQUIRE(steps.retire(first));
  CHECK(steps.passed(tag));
  CHECK_FALSE(steps.in_flight());
}

TEST_CASE("a step retires once, and only when it was begun", "[step_fence]") {
  auto steps = fence{};
  CHECK(steps.retire(step_id{0}).error().code == error_code::unknown_step);
  CHECK(steps.retire(step_id{1}).error().code == error_code::unknown_step);
  const auto first = steps.begin().value();
  const auto second = steps.begin().value();
  REQUIRE(steps.retire(second));
  CHECK(steps.retire(second).error().code == error_code::unknown_step);
  REQUIRE(steps.retire(first));
  CHECK(steps.retire(first).error().code == error_code::unknown_step);
  CHECK(steps.retire(second).error().code == error_code::unknown_step);
  CHECK(steps.retire(step_id{2 + fence::capacity}).error().code == error_code::unknown_step);
}

TEST_CASE("a 65th step waits until the oldest has retired", "[step_fence]") {
  auto steps = fence{};
  for (auto i = std::uint64_t{0}; i < fence::capacity; ++i) {
    REQUIRE(steps.begin());
  }
  const auto refused = steps.begin();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::limit_reached);
  CHECK(refused.error().limit == static_cast<std::int64_t>(fence::capacity));
  CHECK(refused.error().step == step_id{1});
  REQUIRE(steps.retire(step_id{2}));
  CHECK(steps.begin().error().step == step_id{1});
  REQUIRE(steps.retire(step_id{1}));
  CHECK(steps.begin().value() == step_id{65});
  CHECK(steps.begin().value() == step_id{66});
  CHECK(steps.begin().error().step == step_id{3});
}

TEST_CASE("steps retire in any order, and tags pass in the order of their steps", "[step_fence][random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  auto steps = fence{};
  auto alive = std::vector<step_id>{};
  auto tags = std::vector<std::pair<step_id, std::uint32_t>>{};
  for (auto i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0) {
      if (const auto begun = steps.begin()) {
        alive.push_back(*begun);
        tags.emplace_back(*begun, steps.tag());
      }
    } else if (!alive.empty()) {
      const auto which = alive.begin() + static_cast<std::ptrdiff_t>(random() % alive.size());
      REQUIRE(steps.retire(*which));
      alive.erase(which);
    }
    const auto oldest = alive.empty() ? step_id{~std::uint64_t{0}} : *std::ranges::min_element(alive);
    REQUIRE(steps.in_flight() == !alive.empty());
    std::erase_if(tags, [&](const auto& tag) {
      REQUIRE(steps.passed(tag.second) == (tag.first < oldest));
      return tag.first < oldest;
    });
  }
}

TEST_CASE("a set of steps has the newest and those among the 64 before it", "[step_fence][random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  for (auto round = 0; round < 200; ++round) {
    auto steps = step_set{};
    auto numbers = std::vector<std::uint64_t>{};
    for (auto number = std::uint64_t{1}; number < 300; number += 1 + random() % (round % 3 == 0 ? 90 : 5)) {
      numbers.push_back(number);
    }
    if (round % 4 == 0 && numbers.size() > 1) {
      std::swap(numbers[numbers.size() - 1], numbers[numbers.size() - 2]);  // two threads begin at once
    }
    for (const auto number : numbers) {
      steps.insert(step_id{number});
      steps.insert(step_id{number});
    }
    std::ranges::sort(numbers, std::greater{});
    std::erase_if(numbers, [&](std::uint64_t number) { return numbers[0] - number > 64; });
    auto visited = std::vector<std::uint64_t>{};
    visit_latest_first(steps, [&](std::uint64_t number) {
      visited.push_back(number);
      return false;
    });
    REQUIRE(visited == numbers);
  }
}

TEST_CASE("a tag is that of the newest open step that uses everything or is in the set", "[step_fence]") {
  auto steps = fence{};
  const auto begin = [&](step_use use) { return steps.begin(use).value(); };
  const auto first = begin(step_use::named_sequences);
  const auto second = begin(step_use::named_sequences);
  auto used = step_set{};
  CHECK(steps.tag(used) == 0);
  used.insert(first);
  const auto tag = steps.tag(used);
  CHECK(tag != 0);
  CHECK_FALSE(steps.passed(tag));
  REQUIRE(steps.retire(second));
  used.insert(second);
  CHECK(steps.tag(used) == tag);  // the second has retired
  const auto third = begin(step_use::everything);
  const auto all = steps.tag();
  CHECK(steps.tag(used) == all);
  CHECK(steps.later(tag, all) == all);
  CHECK(steps.later(all, tag) == all);
  CHECK(steps.later(tag, 0) == tag);
  CHECK(steps.later(0, tag) == tag);
  REQUIRE(steps.retire(first));
  CHECK(steps.later(tag, 0) == 0);
  REQUIRE(steps.retire(third));
  CHECK(steps.tag(used) == 0);
}

TEST_CASE("a forecast names the newest open step that a tag waits for", "[step_fence]") {
  auto steps = fence{};
  auto begun = std::vector<step_id>{};
  auto tags = std::vector<std::uint32_t>{};
  for (auto i = 0; i < 5; ++i) {
    begun.push_back(steps.begin().value());
    tags.push_back(steps.tag());
  }
  const auto named = [&](std::int64_t num_needed) {
    const auto each_once = [&](auto&& visit) { std::ranges::for_each(tags, [&](auto tag) { visit(tag, 1); }); };
    return steps.step_that_frees(num_needed, each_once).step;
  };
  REQUIRE(steps.retire(begun[4]));
  REQUIRE(steps.retire(begun[2]));
  REQUIRE(steps.retire(begun[1]));
  CHECK(named(1) == begun[0]);
  CHECK(named(2) == begun[0]);
  CHECK(named(3) == begun[0]);
  CHECK(named(4) == begun[3]);
  CHECK(named(5) == begun[3]);
  CHECK(named(6) == step_id{});
}

namespace {

/// Starts at a chosen number instead of 0, so that its lower bits wrap during a test.
template <std::uint64_t First>
struct counting_from {
  template <class T>
  struct number : unsynchronized<T> {
    number() noexcept = default;
    number(T) noexcept : unsynchronized<T>(T{First}) {}
  };
};

}  // namespace

TEMPLATE_TEST_CASE("tags hold across the wrap of their 32 bits", "[step_fence]", counting_from<0x3fff'fff0>,
                   counting_from<0x7fff'fff0>, counting_from<0xffff'fff0>) {
  auto steps = step_fence<TestType::template number>{};
  for (auto i = 0; i < 100; ++i) {
    const auto first = steps.begin().value();
    const auto early = steps.tag();
    const auto second = steps.begin().value();
    const auto late = steps.tag();
    REQUIRE(early != 0);
    REQUIRE(late != 0);
    REQUIRE_FALSE(steps.passed(early));
    REQUIRE(steps.retire(first));
    REQUIRE_FALSE(steps.passed(late));
    REQUIRE(steps.retire(second));
    REQUIRE(steps.passed(early));
    REQUIRE(steps.passed(late));
  }
}
