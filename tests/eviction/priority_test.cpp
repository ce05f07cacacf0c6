#include <pagedkv/policy/eviction/priority.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace pagedkv;

namespace {

constexpr auto take = [](block_id, auto...) { return eviction_answer::taken; };

}  // namespace

TEST_CASE("priority takes the lowest class first, and the least recently released within it", "[eviction]") {
  auto policy = priority{6};
  policy.insert(block_id{0}, {.priority = 100});
  policy.insert(block_id{1}, {.priority = 50});
  policy.insert(block_id{2}, {});
  policy.insert(block_id{3}, {.priority = 50});
  policy.insert(block_id{4}, {});
  policy.insert(block_id{5}, {.priority = 255});
  for (const auto expected : {2, 4, 1, 3, 0, 5}) {
    CHECK(policy.victim(take, {}) == block_id{expected});
  }
}

TEST_CASE("a priority given for a time falls back when the time is over", "[eviction]") {
  auto policy = priority{4};
  policy.insert(block_id{0}, {.priority = 90, .retain_until = timestamp{100}});
  policy.insert(block_id{1}, {.priority = 10});
  policy.insert(block_id{2}, {});
  CHECK(policy.victim(take, timestamp{99}) == block_id{2});
  policy.insert(block_id{2}, {});
  policy.insert(block_id{3}, {.priority = 90, .retain_until = timestamp{300}});
  CHECK(policy.victim(take, timestamp{100}) == block_id{2});
  CHECK(policy.victim(take, timestamp{100}) == block_id{0});
  CHECK(policy.victim(take, timestamp{299}) == block_id{1});
  CHECK(policy.victim(take, timestamp{299}) == block_id{3});
}

TEST_CASE("blocks of a session that has ended go first, and come back when they are hit", "[eviction]") {
  auto policy = priority{3};
  policy.insert(block_id{0}, {});
  policy.insert(block_id{1}, {.priority = 80, .ended = true});
  policy.insert(block_id{2}, {.ended = true});
  policy.remove(block_id{1});
  policy.insert(block_id{1}, {});
  CHECK(policy.victim(take, {}) == block_id{2});
  CHECK(policy.victim(take, {}) == block_id{0});
  CHECK(policy.victim(take, {}) == block_id{1});
}
