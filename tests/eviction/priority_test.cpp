#include <pagedkv/policy/eviction/priority.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <utility>

using namespace pagedkv;

namespace {

constexpr auto take = [](block_id, auto...) { return eviction_answer::taken; };
constexpr auto refuse = [](block_id, auto...) { return eviction_answer::in_use; };

/// Lets block 0 return 100 ns after each release, expected after `expected` ns. Returns the time then.
std::int64_t let_return(priority& policy, std::int64_t expected) {
  auto now = std::int64_t{0};
  for (auto i = 0; i < 300; ++i) {
    policy.insert(block_id{0}, {.expected_return = expected, .released_at = timestamp{now}});
    now += 100;
    static_cast<void>(policy.victim(refuse, timestamp{now}));
    policy.remove(block_id{0});
  }
  policy.erase(block_id{0});
  return now;
}

/// Releases block 0 first, not expected soon, and 1 to 4, expected in another order.
void release_expected(priority& policy, std::int64_t now) {
  policy.insert(block_id{0}, {.released_at = timestamp{now - 3000}});
  for (const auto& [block, after] : {std::pair{1, 5000}, {2, 1000}, {3, 9000}, {4, 0}}) {
    policy.insert(block_id{block}, {.expected_return = after, .released_at = timestamp{now}});
  }
}

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

TEST_CASE("a block that no request releases keeps what it was given", "[eviction]") {
  auto policy = priority{5};
  policy.insert(block_id{0}, {.priority = 90});
  policy.insert(block_id{1}, {.priority = 90, .retain_until = timestamp{100}});
  policy.insert(block_id{2}, {.priority = 50});
  policy.note(block_id{3}, {.priority = 80});  // in use, and not tracked yet
  policy.remove(block_id{0});
  policy.remove(block_id{1});
  policy.note(block_id{0}, {.priority = 70});
  for (const auto block : {0, 1, 3}) {
    policy.insert(block_id{block}, {.as_before = true, .released_at = timestamp{50}});
  }
  CHECK(policy.victim(take, timestamp{99}) == block_id{2});
  CHECK(policy.victim(take, timestamp{100}) == block_id{1});
  CHECK(policy.victim(take, timestamp{100}) == block_id{0});
  CHECK(policy.victim(take, timestamp{100}) == block_id{3});
}

TEST_CASE("a block that moves while it is in use keeps what was noted", "[eviction]") {
  auto policy = priority{4};
  policy.note(block_id{0}, {.priority = 80, .retain_until = timestamp{100}});
  policy.rename(block_id{0}, block_id{3});
  policy.insert(block_id{1}, {.priority = 60});
  policy.insert(block_id{3}, {.as_before = true});
  CHECK(policy.victim(take, timestamp{10}) == block_id{1});
  policy.insert(block_id{1}, {.priority = 60});
  CHECK(policy.victim(take, timestamp{100}) == block_id{3});
}

TEST_CASE("a note that comes after another thread's release counts", "[eviction]") {
  auto policy = priority{3};
  policy.insert(block_id{0}, {.priority = 10, .retain_until = timestamp{100}});
  policy.insert(block_id{1}, {.priority = 50});
  policy.note(block_id{0}, {.priority = 90});
  CHECK(policy.victim(take, timestamp{100}) == block_id{1});
  CHECK(policy.victim(take, timestamp{100}) == block_id{0});
}

TEST_CASE("a victim that is given back keeps its priority", "[eviction]") {
  auto policy = priority{3};
  policy.insert(block_id{0}, {.priority = 40});
  policy.insert(block_id{1}, {.priority = 20});
  REQUIRE(policy.victim(take, {}) == block_id{1});
  REQUIRE(policy.victim(take, {}) == block_id{0});
  policy.insert(block_id{0}, {.as_before = true});
  policy.insert(block_id{1}, {.as_before = true});
  CHECK(policy.victim(take, {}) == block_id{1});
}

TEST_CASE("an expectation that no request has released anew tells of no return", "[eviction]") {
  auto policy = priority{5};
  const auto now = let_return(policy, 100);
  policy.insert(block_id{0}, {.released_at = timestamp{now}});
  policy.insert(block_id{1}, {.expected_return = 1000, .released_at = timestamp{now}});
  policy.insert(block_id{2}, {.expected_return = 9000, .released_at = timestamp{now}});
  policy.remove(block_id{1});
  policy.remove(block_id{2});
  policy.insert(block_id{1}, {.as_before = true, .released_at = timestamp{now + 2000}});  // was due before
  policy.insert(block_id{2}, {.as_before = true, .released_at = timestamp{now + 2000}});
  CHECK(policy.victim(take, timestamp{now + 2000}) == block_id{2});
  CHECK(policy.victim(take, timestamp{now + 2000}) == block_id{0});
  CHECK(policy.victim(take, timestamp{now + 2000}) == block_id{1});
}

TEST_CASE("the block that is expected back last goes first, once expectations have come true", "[eviction]") {
  auto policy = priority{5};
  const auto now = let_return(policy, 100);
  release_expected(policy, now);
  // Block 0 was released 3,000 ns ago, and counts as one that returns in as long.
  for (const auto expected : {3, 1, 0, 2, 4}) {
    CHECK(policy.victim(take, timestamp{now}) == block_id{expected});
  }
}

TEST_CASE("a session that does not return when it is expected counts as released then", "[eviction]") {
  auto policy = priority{5};
  const auto now = let_return(policy, 100);
  release_expected(policy, now);
  policy.insert(block_id{4}, {.priority = 1});
  // Blocks 2 and 1 are given up after half as much time again.
  CHECK(policy.victim(take, timestamp{now + 7600}) == block_id{0});
  CHECK(policy.victim(take, timestamp{now + 7600}) == block_id{2});
  CHECK(policy.victim(take, timestamp{now + 7600}) == block_id{1});
  CHECK(policy.victim(take, timestamp{now + 7600}) == block_id{3});
  CHECK(policy.victim(take, timestamp{now + 7600}) == block_id{4});
}

TEST_CASE("expectations that do not come true change nothing", "[eviction]") {
  for (const auto wrong : {20, 1000}) {
    auto policy = priority{5};
    release_expected(policy, let_return(policy, wrong));
    for (const auto expected : {0, 1, 2, 3, 4}) {
      CHECK(policy.victim(take, {}) == block_id{expected});
    }
  }
}

TEST_CASE("a priority for a time ends also for a block that is expected later", "[eviction]") {
  auto policy = priority{3};
  const auto now = let_return(policy, 100);
  policy.insert(block_id{0}, {.priority = 90,
                              .expected_return = 2000,
                              .retain_until = timestamp{now + 50},
                              .released_at = timestamp{now}});
  policy.insert(block_id{1}, {.priority = 10, .released_at = timestamp{now}});
  policy.insert(block_id{2}, {.priority = 10, .released_at = timestamp{now}});
  CHECK(policy.victim(take, timestamp{now + 40}) == block_id{1});
  CHECK(policy.victim(take, timestamp{now + 60}) == block_id{0});
  CHECK(policy.victim(take, timestamp{now + 60}) == block_id{2});
}

TEST_CASE("sessions that are said to have ended but return are kept like others", "[eviction]") {
  auto policy = priority{64};
  for (auto round = std::uint64_t{0}; round < 200; ++round) {
    for (auto i = std::uint64_t{0}; i < 64; ++i) {
      policy.insert(block_id{static_cast<std::int32_t>(i)}, {.hash = i, .ended = i % 2 == 0});
      policy.remove(block_id{static_cast<std::int32_t>(i)});
    }
  }
  for (auto i = 0; i < 64; ++i) {
    policy.insert(block_id{i}, {.ended = i == 63});
  }
  for (auto i = 0; i < 64; ++i) {
    CHECK(policy.victim(take, {}) == block_id{i});
  }
}
