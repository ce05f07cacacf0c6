#include <pagedkv/pool/run_free_list.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <random>
#include <set>
#include <vector>

namespace {

using namespace pagedkv;

constexpr auto octet_size = run_free_list::octet_size;

[[nodiscard]] std::vector<std::size_t> free_by_octet(const std::set<block_id>& free, std::size_t num_blocks) {
  auto counts = std::vector<std::size_t>((num_blocks + octet_size - 1) / octet_size);
  for (const auto block : free) {
    ++counts[to_index(block) / octet_size];
  }
  return counts;
}

/// Blocks that a search of every octet would take in whole octets, and the octets that it may break for the others.
struct naive {
  std::size_t num_whole = 0;
  std::size_t num_to_take = 0;
};

[[nodiscard]] naive search(const std::set<block_id>& free, std::size_t num_blocks, std::size_t wanted) {
  auto found = naive{};
  for (const auto count : free_by_octet(free, num_blocks)) {
    found.num_whole += count == octet_size;
  }
  found.num_to_take = std::min(found.num_whole, wanted / octet_size);
  return found;
}

}  // namespace

TEST_CASE("blocks are taken in whole octets, and others from octets that are in pieces", "[free_list][random]") {
  const auto seed = GENERATE(take(20, random(0U, 0xffff'ffffU)));
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  const auto num_blocks = 1 + random() % 300;
  auto list = run_free_list{static_cast<std::int32_t>(num_blocks)};
  auto free = std::set<block_id>{};
  for (std::size_t i = 0; i < num_blocks; ++i) {
    free.insert(to_block(i));
  }
  auto held = std::vector<block_id>{};
  for (auto step = 0; step < 500; ++step) {
    auto taken = std::vector<block_id>(random() % 40);
    const auto expected = search(free, num_blocks, taken.size());
    const auto before = free_by_octet(free, num_blocks);
    REQUIRE(list.num_whole() == static_cast<std::int32_t>(expected.num_whole));
    REQUIRE(list.take(taken) == std::min(taken.size(), free.size()));
    taken.resize(std::min(taken.size(), free.size()));
    for (const auto block : taken) {
      REQUIRE(free.erase(block) == 1);
    }
    const auto after = free_by_octet(free, num_blocks);
    for (std::size_t i = 0; i < expected.num_to_take * octet_size; ++i) {
      REQUIRE(before[to_index(taken[i]) / octet_size] == octet_size);
      REQUIRE((i % octet_size == 0 || to_index(taken[i]) == to_index(taken[i - 1]) + 1));
    }
    // A whole octet is broken only where the others have no block left.
    auto num_broken = std::size_t{0};
    auto num_left = std::size_t{0};
    for (std::size_t octet = 0; octet < before.size(); ++octet) {
      const auto was_whole = before[octet] == octet_size;
      num_broken += was_whole && after[octet] != octet_size;
      num_left += was_whole ? 0 : after[octet];
    }
    REQUIRE((num_broken == expected.num_to_take || num_left == 0));
    REQUIRE(list.size() == static_cast<std::int32_t>(free.size()));

    held.insert(held.end(), taken.begin(), taken.end());
    std::ranges::shuffle(held, random);
    for (auto count = random() % (held.size() + 1); count > 0; --count) {
      list.push(held.back());
      free.insert(held.back());
      held.pop_back();
    }
  }
}

TEST_CASE("neighbouring octets are taken together, with the blocks behind them", "[free_list]") {
  auto list = run_free_list{40};
  auto all = std::array<block_id, 40>{};
  REQUIRE(list.take(all) == 40);
  for (auto i = std::size_t{8}; i < 28; ++i) {
    list.push(to_block(i));
  }
  list.push(block_id{35});
  auto taken = std::array<block_id, 20>{};
  REQUIRE(list.take(taken) == 20);
  for (auto i = std::size_t{0}; i < 20; ++i) {
    CHECK(taken[i] == to_block(i + 8));
  }
  CHECK(list.pop() == block_id{35});
  CHECK(list.pop() == no_block);
}
