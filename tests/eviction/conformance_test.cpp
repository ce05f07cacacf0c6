#include <pagedkv/policy/eviction/all.hpp>

#include "../support/allocation_count.hpp"
#include "../support/eviction_model.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

using namespace pagedkv;

namespace {

template <class... Policies>
auto those_that_evict(policy_list<Policies...>) {
  return (policy_list<>{} + ... + std::conditional_t<evicts<Policies>, policy_list<Policies>, policy_list<>>{});
}

/// Has seen that sessions return when they are expected.
class expecting_priority : public priority {
 public:
  explicit expecting_priority(std::int32_t num_blocks) : priority(num_blocks) {
    constexpr auto in_use = [](block_id, auto...) { return eviction_answer::in_use; };
    for (auto now = std::int64_t{2}; now < 1000; now += 2) {
      insert(block_id{0}, {.expected_return = 2, .released_at = timestamp{now}});
      static_cast<void>(victim(in_use, timestamp{now + 2}));
      remove(block_id{0});
    }
    erase(block_id{0});
  }
};

using evicting = decltype(those_that_evict(all_evictions{}) +
                          policy_list<basic_clock_sweep<1>, clock_sweep::for_one_thread, expecting_priority>{});

constexpr auto take_leaf = [](block_id, auto...) { return eviction_answer::taken; };

template <eviction_policy Policy>
block_id next_victim(Policy& policy, timestamp now = {}) {
  return policy.victim(take_leaf, now);
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("a policy holds its contract through random requests", "[eviction][random]", evicting) {
  const auto seed = Catch::getSeed() + GENERATE(Catch::Generators::range(0U, 20U));
  const auto num_blocks = GENERATE(1, 7, 24, 200);
  CAPTURE(TestType::name, seed, num_blocks);
  auto model = test::eviction_model<TestType>{num_blocks, seed};
  for (auto i = 0; i < 1000 && model.complaints.empty(); ++i) {
    CAPTURE(i);
    model.step();
    REQUIRE(model.complaints == std::vector<std::string>{});
  }
  CHECK(model.victims > 0);
  model.finish_all();
  model.drain();
  CHECK(model.complaints == std::vector<std::string>{});
}

TEMPLATE_LIST_TEST_CASE("a policy allocates nothing after construction", "[eviction]", evicting) {
  auto policy = TestType{64};
  CHECK(policy.metadata_bytes() > 0);
  const auto before = test::allocation_count();
  for (auto round = std::uint64_t{0}; round < 5000; ++round) {
    const auto block = to_block(round % 64);
    if (round >= 64) {
      policy.remove(block);
      policy.insert(block, {.hash = round, .depth = 1});
      const auto freed = next_victim(policy);
      policy.insert(freed, {.hash = round % 300});
    } else {
      policy.insert(block, {.hash = round});
    }
  }
  CHECK(test::allocation_count() == before);
}

TEMPLATE_LIST_TEST_CASE("a policy forgets what is erased and follows what is renamed", "[eviction]", evicting) {
  auto policy = TestType{4};
  CHECK(next_victim(policy) == no_block);
  policy.insert(block_id{0}, {.hash = 1});
  policy.insert(block_id{1}, {.hash = 2});
  policy.erase(block_id{0});
  policy.rename(block_id{1}, block_id{3});
  CHECK(next_victim(policy) == block_id{3});
  CHECK(next_victim(policy) == no_block);
  policy.insert(block_id{2}, {.hash = 3});
  policy.remove(block_id{2});
  CHECK(next_victim(policy) == no_block);
  policy.rename(block_id{2}, block_id{1});
  policy.insert(block_id{1}, {.hash = 3});
  CHECK(next_victim(policy) == block_id{1});
  policy.insert(block_id{1}, {.hash = 4});
  policy.remove(block_id{1});
  policy.erase(block_id{1});
  CHECK(next_victim(policy) == no_block);
}

TEMPLATE_TEST_CASE("blocks that leave together leave as they would one by one", "[eviction][random]", clock_sweep,
                   basic_clock_sweep<1>, clock_sweep::for_one_thread) {
  constexpr auto num_blocks = std::int32_t{300};
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  auto together = TestType{num_blocks};
  auto one_by_one = TestType{num_blocks};
  const auto insert = [&](block_id block) {
    together.insert(block, {});
    one_by_one.insert(block, {});
  };
  for (auto i = 0; i < num_blocks; ++i) {
    insert(block_id{i});
  }
  for (auto round = 0; round < 20; ++round) {
    auto hit = std::vector<block_id>{};
    for (auto i = 0; i < num_blocks; ++i) {
      if (random() % 4 != 0) {
        hit.push_back(block_id{i});
      }
    }
    if (round % 2 == 0) {
      std::shuffle(hit.begin(), hit.end(), random);
    }
    {
      auto removals = together.removals();
      for (const auto block : hit) {
        removals.remove(block);
      }
    }
    for (const auto block : hit) {
      one_by_one.remove(block);
    }
    for (auto victim = next_victim(one_by_one); victim != no_block; victim = next_victim(one_by_one)) {
      REQUIRE(next_victim(together) == victim);
      hit.push_back(victim);
    }
    REQUIRE(next_victim(together) == no_block);
    for (const auto block : hit) {
      insert(block);
    }
  }
}

TEMPLATE_LIST_TEST_CASE("a chain is evicted from its tail", "[eviction]", evicting) {
  auto policy = TestType{16};
  for (auto i = 16; i-- > 0;) {
    const auto depth = static_cast<std::uint32_t>(i);
    policy.insert(block_id{i}, {.hash = depth + 1U, .parent = block_id{i - 1}, .depth = depth});
  }
  auto length = 16;
  const auto offer = [&](block_id block, auto...) {
    return static_cast<int>(block) == length - 1 ? eviction_answer::taken : eviction_answer::has_children;
  };
  for (; length > 0; --length) {
    REQUIRE(policy.victim(offer, {}) == block_id{length - 1});
  }
}

TEST_CASE("hit_density takes at most 24 bytes for each of a million blocks", "[eviction]") {
  CHECK(hit_density{1'000'000}.metadata_bytes() <= 24'000'000);
}

TEST_CASE("no_eviction never gives a block up", "[eviction]") {
  auto policy = no_eviction{2};
  policy.insert(block_id{0}, {});
  CHECK(next_victim(policy) == no_block);
  CHECK(policy.metadata_bytes() == 0);
}

TEST_CASE("lru takes the block that was released longest ago", "[eviction]") {
  auto policy = lru{4};
  for (auto i = 0; i < 3; ++i) {
    policy.insert(block_id{i}, {});
  }
  policy.remove(block_id{0});
  policy.insert(block_id{0}, {});
  policy.rename(block_id{1}, block_id{3});
  CHECK(next_victim(policy) == block_id{3});
  CHECK(next_victim(policy) == block_id{2});
  CHECK(next_victim(policy) == block_id{0});
}

TEST_CASE("fifo takes the block that was published longest ago", "[eviction]") {
  auto policy = fifo{4};
  for (auto i = 0; i < 4; ++i) {
    policy.insert(block_id{i}, {});
  }
  policy.remove(block_id{0});
  policy.insert(block_id{0}, {});
  policy.remove(block_id{1});
  CHECK(next_victim(policy) == block_id{0});
  CHECK(next_victim(policy) == block_id{2});
  policy.insert(block_id{1}, {});
  CHECK(next_victim(policy) == block_id{1});
  CHECK(next_victim(policy) == block_id{3});
}
